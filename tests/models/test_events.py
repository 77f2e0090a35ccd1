"""A training step of every registered network by events and by dense layers: the same numbers, to float tolerance."""

import pytest
import torch

import steadyspike as ss
from steadyspike.kernels.conv import function
from steadyspike.nn.event_layers import EventConv2d, EventLinear
from tests.kernels.built import ALWAYS, needs_kernel
from tests.models.members import TINY, clip, member

pytestmark = needs_kernel


def step(model: torch.nn.Module, x: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    torch.manual_seed(1)  # of dropout
    out = model(x)
    out.square().mean().backward()
    return out.detach(), {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("name", TINY)
def test_a_step_agrees_with_the_dense_one(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(function, "COSTS", dict.fromkeys(function.COSTS, ALWAYS))
    ran = []
    run = function._run
    monkeypatch.setattr(function, "_run", lambda *args: ran.append(1) or run(*args))
    model = member(name)
    assert any(isinstance(m, (EventConv2d, EventLinear)) for m in model.modules())
    dense = member(name)
    dense.load_state_dict(model.state_dict())
    ss.use_dense(dense)

    x = clip(name)
    out, grads = step(model, x)
    assert ran, "no layer ran by events"
    expected, wanted_grads = step(dense, x)
    torch.testing.assert_close(out, expected, rtol=1e-3, atol=1e-4)
    assert grads.keys() == wanted_grads.keys()
    for parameter, grad in grads.items():
        scale = wanted_grads[parameter].abs().max().item()
        torch.testing.assert_close(grad, wanted_grads[parameter], rtol=1e-3, atol=1e-3 * scale + 1e-7, msg=parameter)
