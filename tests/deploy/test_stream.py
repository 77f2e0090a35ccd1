"""One frame at a time equals the batch call, for models and folded networks, and can stop early."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import steadyspike as ss
from steadyspike.deploy import Confidence, Margin, fold, stream
from steadyspike.deploy.early_exit import exit_curve
from tests.deploy.trained import trained


@pytest.mark.parametrize("norm", ["tdbn", "tebn", "tab"])
@pytest.mark.parametrize("name", ["resnet19_tiny", "sew_dvs_tiny"])
def test_frame_by_frame_equals_the_batch_call(name, norm):
    model, x = trained(name, norm=norm)
    model, x = model.double(), x.double()
    frames = x if x.ndim == 5 else x.expand(4, *x.shape)
    expected = model(x)
    one = stream(model)
    got = torch.stack([one(frame) for frame in frames])
    assert torch.allclose(got, expected, atol=1e-12) and one.step == 4
    assert torch.allclose(one.mean, expected.mean(0), atol=1e-12)


@pytest.mark.parametrize("norm", ["tdbn", "tebn"])
def test_folded_networks_stream_too(norm):
    model, x = trained("resnet19_tiny", norm=norm)
    network = fold(model, x).double()
    one = stream(network)
    got = torch.stack([one(x.double()) for _ in range(4)])
    assert torch.allclose(got, network(x.double()), atol=1e-12)


def test_two_streams_do_not_know_of_each_other():
    model, x = trained("resnet19_tiny")
    first, second = stream(model), stream(model)
    start = first(x)
    first(x)
    second(x.flip(0))
    assert torch.allclose(first(x), model(x)[2], atol=1e-5)
    first.reset()
    assert torch.equal(first(x), start)


def test_early_exit_keeps_the_logits_of_the_step_of_decision():
    model, x = trained("resnet19_tiny")
    expected = model(x).detach().cumsum(0) / torch.arange(1, 5).view(-1, 1, 1)
    margins = (expected[0].topk(2).values[:, 0] - expected[0].topk(2).values[:, 1]).sort().values
    rule = Margin(float(margins[1]) - 1e-6)
    logits, steps = stream(model, rule).run(x, timesteps=4)
    assert steps.min() == 1 and (steps >= 1).all()
    for i, step in enumerate(steps.tolist()):
        assert torch.allclose(logits[i], expected[step - 1, i], atol=1e-5)
        assert step == 4 or rule(expected[step - 1])[i]
        assert not any(rule(expected[t])[i] for t in range(step - 1))


def test_rules_are_checked():
    with pytest.raises(ValueError, match="probability"):
        Confidence(1.5)
    with pytest.raises(ValueError, match="margin"):
        Margin(-1)
    model, x = trained("resnet19_tiny")
    one = stream(model)
    one(x)
    with pytest.raises(RuntimeError, match="exit_when"):
        _ = one.decided
    with pytest.raises(ValueError, match="evaluation mode"):
        stream(model.train())


def test_the_exit_curve_is_what_streams_decide():
    model, x = trained("resnet19_tiny", x=torch.rand(6, 3, 16, 16, generator=torch.Generator().manual_seed(0)))
    logits = model(x).detach()
    labels = logits.mean(0).argmax(-1)
    rules = [None, Margin(0.0), Margin(0.05), Confidence(0.99)]
    curve = exit_curve([(logits[:, :3], labels[:3]), (logits[:, 3:], labels[3:])], rules)
    assert curve[0].accuracy == 1.0 and curve[0].steps == 4 == curve[3].steps and curve[1].steps == 1
    decided = stream(model, rules[2]).run(x, timesteps=4)
    assert curve[2].steps == pytest.approx(float(decided.steps.double().mean()))
    assert curve[2].accuracy == pytest.approx(float((decided.logits.argmax(-1) == labels).double().mean()))


def _two_calls() -> nn.Module:
    class Twice(nn.Module):
        """One neuron layer at two places."""

        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.o = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 3)
            self.fire = ss.LIF(0.3)

        def forward(self, x: Tensor) -> Tensor:
            return self.o(self.fire(2 * self.b(self.fire(self.a(x)))))

    torch.manual_seed(0)
    return Twice().eval()


@torch.no_grad()
def test_a_neuron_called_twice_has_two_states():
    model, x = _two_calls(), 3 * torch.rand(5, 4, 6)
    one = ss.stream(model)
    assert torch.allclose(torch.stack([one(frame) for frame in x]), model(x), atol=1e-6)


def test_a_forward_of_ones_own_is_refused():
    class Mine(ss.LIF):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(3 * x)

    with pytest.raises(ValueError, match="1: Mine overrides forward"):
        ss.stream(nn.Sequential(nn.Linear(6, 8), Mine()).eval())


def test_a_loop_over_time_inside_the_model_is_refused():
    """Each frame would start from the initial potential, so that all steps but the first would be wrong."""

    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inputs, self.back, self.lif = nn.Linear(6, 8), nn.Linear(8, 8), ss.LIF(0.3)

        def forward(self, x: Tensor) -> Tensor:
            out, state, outs = x.new_zeros(1, x.shape[1], 8), None, []
            for frame in x:
                out, state = self.lif.scan(self.inputs(frame)[None] + self.back(out), state)
                outs.append(out[0])
            return torch.stack(outs)

    model = Recurrent().eval()
    with pytest.raises(ValueError, match=r"lif: the model loops over time itself"):
        ss.stream(model)(torch.rand(4, 6))
    assert "scan" not in model.lif.__dict__


def test_a_static_batch_without_timesteps_is_refused():
    model = ss.models.create("resnet19_tiny", timesteps=4).eval()
    with pytest.raises(ValueError, match=r"static batch: run\(x, timesteps=T\)"):
        ss.stream(model).run(torch.rand(2, 3, 16, 16))


def test_another_batch_size_and_no_frame_are_refused():
    network = ss.deploy.fold(_two_calls(), torch.rand(4, 2, 6))
    one = ss.stream(network)
    one(torch.rand(1, 6))
    with pytest.raises(ValueError, match=r"batch of 1 and the frame has 3; call reset\(\) first"):
        one(torch.rand(3, 6))
    with pytest.raises(ValueError, match="at least one frame"):
        one.run(torch.rand(0, 2, 6))


def test_a_stream_does_not_run_in_training_mode():
    model = _two_calls()
    one = ss.stream(model)
    model.train()
    with pytest.raises(ValueError, match="evaluation mode"):
        one(torch.rand(2, 6))


@torch.no_grad()
def test_norms_with_constants_per_step_keep_bfloat16():
    model, x = trained("resnet19_tiny", norm="tebn")
    assert stream(model.bfloat16())(x.bfloat16()).dtype == torch.bfloat16
