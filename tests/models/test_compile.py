"""torch.compile takes every family whole, with the same outputs and gradients."""

from __future__ import annotations

import pytest
import torch

from steadyspike import models
from tests.models.members import FAMILIES, TINY, images, member, one_step

# Made of the same layers as spikformer, and long to compile.
SLOW = ("qkformer", "sdt", "spikformer_v2", "spikingformer")


def first_member(family: str) -> object:
    name = next(n for n in TINY if n in models.names(family))
    return pytest.param(name, marks=pytest.mark.slow if family in SLOW else ())


@pytest.mark.parametrize("name", [first_member(family) for family in FAMILIES])
def test_compiled_equals_eager(name: str) -> None:
    compare(name, "aot_eager")


@pytest.mark.slow
@pytest.mark.parametrize("training", [True, False])
def test_inductor_equals_eager(training: bool) -> None:
    compare("resnet19_tiny", "inductor", training=training)


def compare(name: str, backend: str, *, training: bool = True) -> None:
    """Forward and every gradient of one step, in one graph without breaks."""
    torch._dynamo.reset()
    x = images(name)
    results = []
    shallow = {"layers": (1, 1, 1, 1)} if "resnet34" in name else {}
    for compiled in (False, True):
        model = member(name, timesteps=2, **shallow)
        one_step(model, x)
        model.train(training)
        run = torch.compile(model, backend=backend, fullgraph=True) if compiled else model
        out = run(x)
        out.square().mean().backward()
        results.append((out.detach(), {n: p.grad for n, p in model.named_parameters()}, dict(model.named_buffers())))
    (out, grads, buffers), (out_c, grads_c, buffers_c) = results
    torch.testing.assert_close(out_c, out, rtol=1e-4, atol=1e-5)
    for n, g in grads.items():
        torch.testing.assert_close(grads_c[n], g, rtol=1e-3, atol=1e-5, msg=lambda text, n=n: f"{n}: {text}")
    for n, b in buffers.items():
        torch.testing.assert_close(buffers_c[n], b, rtol=1e-4, atol=1e-5, msg=lambda text, n=n: f"{n}: {text}")


@pytest.mark.parametrize("part", ["body", "body.layer2"])
def test_a_part_that_was_compiled_runs_compiled(part: str) -> None:
    torch._dynamo.reset()
    model, x, calls = member("resnet19_tiny", timesteps=2).eval(), images("resnet19_tiny"), []
    with torch.no_grad():
        expected = model(x)
        model.get_submodule(part).compile(backend=lambda graph, _: calls.append(part) or graph.forward)
        torch.testing.assert_close(model(x), expected)
    assert calls
