"""Layers that people build with: concatenations, 1-D networks, other poolings, norms, paddings and upsamplings."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import steadyspike as ss
from steadyspike.deploy import CannotFold, export_onnx, fold
from steadyspike.deploy import compile as compile_network
from steadyspike.deploy.energy import count_operations
from steadyspike.deploy.integers import IntegerNetwork
from steadyspike.nn.time import Folded
from tests.deploy.trained import settle


class Between(nn.Module):
    """conv, fire, what is given (on [N, 8, ...] spikes), fire, mean over pixels, linear."""

    def __init__(self, middle: nn.Module, channels: int = 8, flat: bool = False) -> None:
        super().__init__()
        conv = nn.Conv1d if flat else nn.Conv2d
        self.a, self.fire, self.middle = Folded(conv(2, 8, 3, padding=1)), ss.LIF(0.3), Folded(middle)
        self.norm, self.late, self.o = ss.nn.norm.TDBN(channels), ss.LIF(0.3), nn.Linear(channels, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = self.late(self.norm(self.middle(self.fire(self.a(x)))))
        return self.o(y.flatten(3).mean(-1))


class Pad(nn.Module):
    def __init__(self, *sides: int, mode: str = "constant") -> None:
        super().__init__()
        self.sides, self.mode = sides, mode

    def forward(self, x: Tensor) -> Tensor:
        return F.pad(x, self.sides, self.mode)


QUICK = "adaptive max, windows of two lengths"
MIDDLES: dict[str, Callable[[], tuple[nn.Module, int, bool]]] = {
    "max-pool 1d": lambda: (nn.Sequential(nn.MaxPool1d(2), nn.Conv1d(8, 8, 3)), 8, True),
    "average pool 1d": lambda: (nn.Sequential(nn.AvgPool1d(2), nn.Conv1d(8, 8, 3)), 8, True),
    "adaptive average 1d": lambda: (nn.Sequential(nn.AdaptiveAvgPool1d(4), nn.Conv1d(8, 8, 3)), 8, True),
    "adaptive max 1d": lambda: (nn.Sequential(nn.AdaptiveMaxPool1d(3), nn.Conv1d(8, 8, 3)), 8, True),
    "batch norm 1d": lambda: (nn.Sequential(nn.Conv1d(8, 8, 3), nn.BatchNorm1d(8)), 8, True),
    "transposed": lambda: (nn.ConvTranspose2d(8, 6, 3, 2, 1, 1, groups=2), 6, False),
    "transposed 1d": lambda: (nn.ConvTranspose1d(8, 6, 3, 2), 6, True),
    "group norm": lambda: (nn.Sequential(nn.Conv2d(8, 6, 3), nn.GroupNorm(3, 6)), 6, False),
    "group norm of spikes": lambda: (nn.Sequential(nn.GroupNorm(2, 8), nn.Conv2d(8, 6, 3)), 6, False),
    "layer norm": lambda: (nn.Sequential(nn.Conv2d(8, 6, 3), nn.LayerNorm([6, 4, 4])), 6, False),
    "adaptive max": lambda: (nn.Sequential(nn.AdaptiveMaxPool2d((3, 2)), nn.Conv2d(8, 6, 1)), 6, False),
    QUICK: lambda: (nn.AdaptiveMaxPool2d((4, None)), 8, False),
    "pixel shuffle": lambda: (nn.Sequential(nn.PixelShuffle(2), nn.Conv2d(2, 6, 3)), 6, False),
    "bilinear": lambda: (nn.Sequential(nn.Upsample(scale_factor=2, mode="bilinear"), nn.Conv2d(8, 6, 3)), 6, False),
    "nearest to a size": lambda: (nn.Sequential(nn.Upsample((9, 7)), nn.Conv2d(8, 6, 3)), 6, False),
    "aligned corners": lambda: (nn.Upsample((9, 7), mode="bilinear", align_corners=True), 8, False),
    "zeros": lambda: (nn.Sequential(Pad(1, 0, 2, 1), nn.Conv2d(8, 6, 3)), 6, False),
    **{
        f"{mode} padding": lambda mode=mode: (nn.Conv2d(8, 6, 3, padding=1, padding_mode=mode), 6, False)
        for mode in ("reflect", "replicate", "circular")
    },
    "same padding": lambda: (nn.Conv2d(8, 6, (3, 5), padding="same", dilation=(2, 1)), 6, False),
    "valid padding": lambda: (nn.Conv2d(8, 6, 3, padding="valid"), 6, False),
    "same padding 1d": lambda: (nn.Conv1d(8, 8, 5, padding="same"), 8, True),
    "reflection": lambda: (nn.Sequential(nn.ReflectionPad2d(2), nn.Conv2d(8, 6, 3)), 6, False),
}


@pytest.mark.parametrize("name", MIDDLES)
@torch.no_grad()
def test_folded_streamed_and_at_another_number_of_steps(name):
    torch.manual_seed(0)
    middle, channels, flat = MIDDLES[name]()
    x = 3 * torch.rand(4, 3, 2, 12) if flat else 3 * torch.rand(4, 3, 2, 6, 6)
    model = settle(Between(middle, channels, flat), x).double()
    network = fold(model, x.double())
    assert network.proofs[0].worst == 0.0 and not network.proofs[0].silent
    assert torch.allclose(network(x.double()), model(x.double()), atol=1e-12)
    assert torch.allclose(network(x[:2].double()), model(x[:2].double()), atol=1e-12)
    report = count_operations(network, [x.double()])
    assert report.total("acs") > 0


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if "two lengths" in n else pytest.mark.slow) for n in MIDDLES]
)
@torch.no_grad()
def test_run_by_onnxruntime_and_by_the_runtime(name, tmp_path):
    ort = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    torch.manual_seed(0)
    middle, channels, flat = MIDDLES[name]()
    x = 3 * torch.rand(4, 3, 2, 12) if flat else 3 * torch.rand(4, 3, 2, 6, 6)
    network = fold(settle(Between(middle, channels, flat), x), x)
    path = export_onnx(network, tmp_path / "net.onnx")
    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    (out,) = session.run(None, {"input": x.numpy()})
    assert torch.allclose(torch.from_numpy(out), network(x), atol=1e-4)
    assert torch.allclose(compile_network(network)(x), network(x), atol=1e-4)


@torch.no_grad()
def test_zeros_around_frames_that_are_not_folded():
    class Framed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.fire, self.b = Folded(nn.Conv2d(2, 8, 3)), ss.LIF(0.3), Folded(nn.Conv2d(8, 4, 3))
            self.late = ss.LIF(0.01)

        def forward(self, x: Tensor) -> Tensor:
            return self.late(self.b(F.pad(self.fire(self.a(F.pad(x, (1, 0, 2, 1)))), (1, 1, 1, 1))))

    torch.manual_seed(0)
    x = 3 * torch.rand(4, 3, 2, 6, 6)
    model = settle(Framed(), x)
    network = fold(model, x)
    assert network.proofs[0].worst == 0.0 and not network.proofs[0].silent
    assert torch.allclose(network(x), model(x), atol=1e-5)


@torch.no_grad()
def test_a_transposed_convolution_of_spikes_accumulates():
    torch.manual_seed(0)
    x = 3 * torch.rand(4, 3, 2, 6, 6)
    model = settle(Between(nn.ConvTranspose2d(8, 6, 3, 2, groups=2), 6), x)
    network = fold(model, x)
    layer = next(entry for entry in count_operations(network, [x]).layers if entry.name == "middle.layer")
    spikes = float(model.fire.spikes(model.fire(model.a(x))).sum())
    assert layer.kind == "spikes" and layer.macs == 0
    assert layer.acs == pytest.approx(spikes * 3 * 9)  # without padding each spike reaches 3 channels of 3 x 3 outputs


class Joined(nn.Module):
    """Spikes of two layers with different V side by side, and a part of them, before a convolution."""

    def __init__(self, groups: int = 1, part: tuple[object, ...] = (slice(None), slice(None), slice(2, 14))) -> None:
        super().__init__()
        self.part = part
        self.a, self.b = Folded(nn.Conv2d(2, 8, 3, padding=1)), Folded(nn.Conv2d(2, 8, 3, padding=1))
        self.fire, self.other, self.late = ss.LIF(0.3), ss.LIF(0.6), ss.LIF(0.02)
        self.c, self.o = Folded(nn.Conv2d(12, 8, 3, groups=groups)), nn.Linear(8 * 16, 3)

    def forward(self, x: Tensor) -> Tensor:
        both = torch.cat([self.fire(self.a(x)), self.other(self.b(x))], 2)[self.part]
        return self.o(self.late(self.c(both)).flatten(2))


@pytest.mark.parametrize("groups", [1, 2])
@torch.no_grad()
def test_concatenated_and_sliced_spikes_stay_spikes(groups):
    torch.manual_seed(0)
    x = 3 * torch.rand(4, 3, 2, 6, 6)
    model = settle(Joined(groups), x)
    network = fold(model, x)
    assert network.proofs[0].worst == 0.0 and not network.proofs[0].silent
    reads = network.graph["c.layer"].inputs[0]
    assert network.graph[reads].op == "slice"  # nothing between the spikes and the weights
    layer = next(entry for entry in count_operations(network, [x]).layers if entry.name == "c.layer")
    assert layer.kind == "spikes" and layer.macs == 0 < layer.acs
    integers = IntegerNetwork(network, bits=16)
    assert torch.allclose(integers(x), network(x), atol=0.05 * float(network(x).abs().max()))


@torch.no_grad()
def test_a_part_named_from_the_last_axis():
    """`spikes[..., 2:14, :, :]` is `spikes[:, :, 2:14]`."""
    torch.manual_seed(0)
    x = 3 * torch.rand(4, 3, 2, 6, 6)
    network = fold(settle(Joined(part=(..., slice(2, 14), slice(None), slice(None))), x), x)
    assert network.proofs[0].worst == 0.0 and not network.proofs[0].silent


def test_averages_of_different_sizes_side_by_side_have_no_integer_weight():
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.fire, self.c = Folded(nn.Conv2d(2, 8, 3, padding=1)), ss.LIF(0.3), Folded(nn.Conv2d(16, 4, 1))
            self.pool, self.most, self.late = Folded(nn.AvgPool2d(2)), Folded(nn.MaxPool2d(2)), ss.LIF(0.1)

        def forward(self, x: Tensor) -> Tensor:
            s = self.fire(self.a(x))
            return self.late(self.c(torch.cat([self.pool(s), self.most(s)], 2)))

    torch.manual_seed(0)
    x = 3 * torch.rand(4, 3, 2, 6, 6)
    network = fold(settle(Mixed(), x), x)
    with pytest.raises(CannotFold, match="combines averages over"):
        IntegerNetwork(network)


@pytest.mark.parametrize(
    ("index", "axis"), [((None,), 0), ((slice(None), slice(None), None), 2), ((Ellipsis, None), -1)]
)
def test_new_axes_by_none(index, axis):
    class Shown(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.fire, self.o = nn.Linear(6, 8), ss.LIF(0.3), nn.Linear(8, 3)

        def forward(self, x: Tensor) -> Tensor:
            h = self.a(x)
            if axis == 0:
                return self.o(self.fire(h[None].expand(4, -1, -1)))
            h = h.expand(4, *h.shape)
            return self.o(self.fire(h[index].squeeze(axis)))

    torch.manual_seed(0)
    x = 3 * torch.rand(3, 6)
    model = settle(Shown(), x)
    network = fold(model, x)
    assert torch.allclose(network(x), model(x), atol=1e-5)


@pytest.mark.filterwarnings("ignore:Using padding='same'")
@pytest.mark.parametrize(
    ("middle", "named"),
    [
        (nn.Upsample(scale_factor=2, mode="bicubic"), "not 'bicubic'"),
        (nn.Conv2d(8, 8, 4, padding="same"), "padding='same' of an even kernel"),
        (nn.ConstantPad2d(1, 0.5), "this one is by 0.5"),
        (nn.LayerNorm([3, 8, 6, 6]), "the model does not run on the example: RuntimeError: Given normalized_shape"),
        (nn.InstanceNorm2d(8), "instance_norm"),
        (nn.FractionalMaxPool2d(2, 3), "fold does not support"),
    ],
)
def test_what_cannot_be_folded_says_why(middle, named):
    x = torch.rand(4, 3, 2, 6, 6)
    with pytest.raises(ValueError, match=named):
        fold(Between(middle), x, batch_dim=1)
