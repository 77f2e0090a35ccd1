"""Batch norms that do not directly follow a convolution: batched, streamed, in ONNX, at other numbers of steps."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import steadyspike as ss
from steadyspike.deploy import fold
from steadyspike.deploy.to_onnx import OneStep, export_onnx
from steadyspike.nn.time import Folded
from tests.deploy.trained import settle

CHANNELS = 8


def conv(channels: int = CHANNELS) -> nn.Conv2d:
    return nn.Conv2d(channels, CHANNELS, 3, padding=1)


class SumOfTwo(nn.Module):
    """Two convolutions of the same input, added."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = conv(2), conv(2)

    def forward(self, x: Tensor) -> Tensor:
        return self.a(x) + self.b(x)


def bn() -> nn.BatchNorm2d:
    return nn.BatchNorm2d(CHANNELS)


STEMS: dict[str, Callable[[], list[nn.Module]]] = {
    "max-pool, norm": lambda: [Folded(nn.Sequential(conv(2), nn.MaxPool2d(2), bn()))],
    "upsample, norm": lambda: [Folded(nn.Sequential(conv(2), nn.Upsample(scale_factor=2), bn()))],
    "norm of a sum": lambda: [Folded(nn.Sequential(SumOfTwo(), bn()))],
    "norm, ReLU, norm": lambda: [Folded(nn.Sequential(conv(2), bn(), nn.ReLU(), bn()))],
    "norm of spikes, conv": lambda: [Folded(conv(2)), ss.LIF(0.5), Folded(nn.Sequential(bn(), conv()))],
}


def network_of(name: str, steps: int) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    head = [ss.LIF(0.5), Folded(nn.AdaptiveAvgPool2d(1)), nn.Flatten(2), nn.Linear(CHANNELS, 3)]
    model = nn.Sequential(*STEMS[name](), *head)
    x = 2 * torch.rand(steps, 2, 2, 6, 6)
    settle(model, x)
    return model, x


@pytest.mark.parametrize("steps", [1, 4, 8])
@pytest.mark.parametrize("name", STEMS)
@torch.no_grad()
def test_batched_and_streamed(name, steps):
    model, x = network_of(name, steps)
    model, x = model.double(), x.double()
    network, expected = fold(model, x), model(x)
    assert not network.proofs[0].silent
    assert torch.allclose(network(x), expected, atol=1e-12)
    one = ss.stream(network)
    assert torch.allclose(torch.stack([one(frame) for frame in x]), expected, atol=1e-12)
    for other in (1, 3, 9):
        frames = torch.cat([x] * 9)[:other]
        assert torch.allclose(network(frames), model(frames), atol=1e-12)


@pytest.mark.parametrize("steps", [pytest.param(1, marks=pytest.mark.slow), pytest.param(4, marks=pytest.mark.slow), 8])
@pytest.mark.parametrize("name", STEMS)
@torch.no_grad()
def test_streamed_by_onnxruntime(name, steps, tmp_path):
    ort = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    model, x = network_of(name, steps)
    network = fold(model, x)
    path = export_onnx(network, tmp_path / "step.onnx", streaming=True)
    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    state = [u.numpy() for u in OneStep(network).start(2)]
    outs = []
    for frame in x:
        out, *state = session.run(None, {"frame": frame.numpy(), **{f"u_{i}": u for i, u in enumerate(state)}})
        outs.append(out)
    assert np.allclose(np.stack(outs), model(x).numpy(), atol=1e-5)


class Readout(nn.Module):
    """Neurons with a readout of a user's own over time."""

    def __init__(self, readout: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.a, self.fire, self.o = nn.Linear(6, 8), ss.LIF(0.3), nn.Linear(8, 3)
        self.readout = readout

    def forward(self, x: Tensor) -> Tensor:
        return self.readout(self.o(self.fire(self.a(x))))


@torch.no_grad()
def test_a_sum_over_time_is_a_sum_at_every_number_of_steps():
    torch.manual_seed(0)
    x = 3 * torch.rand(4, 3, 6, dtype=torch.float64)
    model = settle(Readout(lambda y: y.sum(0)).double(), x)
    network = fold(model, x)
    for steps in (1, 3, 4):
        assert torch.allclose(network(x[:steps]), model(x[:steps]), atol=1e-12)
    one = ss.stream(network)
    for frame in x:
        one(frame)
    assert torch.allclose(one.total, model(x), atol=1e-12)


@torch.no_grad()
def test_a_model_tied_to_its_number_of_steps_is_folded_with_a_note():
    torch.manual_seed(0)
    x = 3 * torch.rand(4, 3, 6)
    free = fold(settle(Readout(lambda y: y.sum(0) / 4), x), x)
    assert "at T = 1" not in str(free.proofs[0])
    network = fold(settle(Readout(lambda y: y.mean(0) if len(y) == 4 else 2 * y.mean(0)), x), x)
    assert "at T = 1 the model gives another result" in str(network.proofs[0])


class Gate(nn.Module):
    """The mean over time of all steps scales every step: step 1 depends on the last one."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.fire, self.late, self.o = nn.Linear(6, 8), ss.LIF(0.3), ss.LIF(0.2), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.fire(self.a(x))
        return self.o(self.late(h + h.mean(0).expand(len(h), *h.shape[1:])))


def test_a_network_that_looks_ahead_folds_and_cannot_be_streamed(tmp_path):
    torch.manual_seed(0)
    x = 3 * torch.rand(4, 3, 6)
    model = settle(Gate(), x)
    network = fold(model, x, mode="graded")
    assert torch.allclose(network(x), model(x), atol=1e-5)
    with pytest.raises(ValueError, match="needs all time steps"):
        ss.stream(network)
    with pytest.raises(ValueError, match="needs all time steps"):
        export_onnx(network, tmp_path / "no.onnx", streaming=True)
