"""Networks as C files: spike for spike the integer network, close to the folded one, clean under strict compilers."""

from __future__ import annotations

import ctypes
import math
import subprocess

import numpy as np
import pytest
import torch
from torch import nn

import steadyspike as ss
from steadyspike.deploy import CannotFold, Confidence, fold
from steadyspike.deploy.early_exit import first_decision
from steadyspike.deploy.integers import IntegerNetwork
from steadyspike.deploy.standalone import lower
from steadyspike.deploy.standalone.c_file import c_texts, export_c
from steadyspike.nn.time import Folded
from tests.deploy.c_program import STRICT, CProgram, compiler, differing
from tests.deploy.trained import trained

pytestmark = pytest.mark.skipif(compiler() is None, reason="there is no C compiler")
SANITIZED = ["-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover"]
WIDE = ["-O1", "-DNET_BLOCK=64"]  # the code for wide vector registers, on any machine
ROUNDING = 1e-4  # the share of spikes that another order of float32 sums may move, as in test_runtime


def settled(model: nn.Module, x: torch.Tensor) -> nn.Module:
    """A model whose MP-Init means fit the input."""
    model.train()
    with torch.no_grad():
        for _ in range(5):
            model(x)
    return model.eval()


def same(network, folder, x, steps, integer=True, **options):
    c = CProgram(network, folder, integer, **options)
    wrong, fired, score = differing(c, x, steps, integer)
    assert fired > 0
    assert wrong <= (0 if integer else ROUNDING * fired)
    assert score < 1e-5
    return c


@pytest.mark.parametrize("name", ["resnet19_tiny", "cnn7_tiny", "spikformer_tiny", "sew_resnet34_tiny", "vgg9_tiny"])
def test_integers_are_those_of_the_integer_network(name, tmp_path):
    model, x = trained(name)
    same(fold(model, x, mode="split"), tmp_path, x, 4, flags=["-O1"])


@pytest.mark.parametrize("name", ["resnet19_tiny", "ms_resnet_tiny", "spikingformer_tiny"])
def test_float_is_the_folded_network(name, tmp_path):
    model, x = trained(name)
    same(fold(model, x, mode="split"), tmp_path, x, 4, integer=False, flags=["-O1"])


@pytest.mark.parametrize("integer", [True, False])
@pytest.mark.parametrize("first", ["conv", "linear", "lif", "pool"])
def test_an_image_that_is_repeated_before_the_first_layer(first, integer, tmp_path):
    """The caller passes it at the first step only; later steps must not read a null pointer."""
    torch.manual_seed(0)
    before = {
        "conv": [Folded(nn.Conv2d(3, 6, 3, padding=1))],
        "linear": [nn.Flatten(2), nn.Linear(108, 6)],
        "lif": [],
        "pool": [Folded(nn.AvgPool2d(2))],
    }

    class Repeats(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.Sequential(*before[first], ss.LIF(0.3), nn.Flatten(2), nn.LazyLinear(4))

        def forward(self, x):
            return self.layers(x.expand(4, *x.shape))

    x = torch.rand(16, 3, 6, 6)
    same(fold(settled(Repeats(), x), x), tmp_path, x, 4, integer, flags=SANITIZED)


@pytest.mark.parametrize("before", [[], [Folded(nn.AvgPool2d(2))], [Folded(nn.MaxPool2d(2))]])
def test_neurons_that_read_frames_without_a_layer_of_weights(before, tmp_path):
    """Their integer currents are the frames in the scale of their potentials."""
    torch.manual_seed(0)
    x = torch.rand(4, 16, 3, 6, 6)
    model = nn.Sequential(*before, ss.LIF(0.3), nn.Flatten(2), nn.LazyLinear(4))
    same(fold(settled(model, x), x), tmp_path, x, 4, flags=SANITIZED)


def test_norms_with_constants_per_step(tmp_path):
    x = torch.rand(4, 3, 3, 16, 16)
    model, x = trained("resnet19_tiny", x, norm="tebn")
    c = same(fold(model, x), tmp_path, x, 4, integer=False, flags=["-O1"])
    assert c.program.limit == 4
    with pytest.raises(subprocess.CalledProcessError):  # a fifth step has no constants: the program ends with code 2
        c.run(torch.cat([x, x[:1]]), 5)


class Odd(nn.Module):
    """Grouped, strided, dilated and depthwise convolutions, a concatenation, more than 32 channels."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(Folded(nn.Conv2d(2, 40, 3, padding=1)), ss.LIF(0.4))
        self.grouped = nn.Sequential(
            Folded(nn.Conv2d(40, 40, 3, 1, 2, 2, groups=4)), ss.LIF(0.2, reset="hard", gradient="as")
        )
        self.depth = nn.Sequential(
            Folded(nn.Conv2d(40, 40, 3, padding=1, groups=40)), ss.LIF(0.1, strict=True, gradient="as")
        )
        self.merge = Folded(nn.Conv2d(80, 12, (3, 2), stride=(2, 3), padding=(1, 0)))
        self.last = ss.LIF(0.2, tau=1.5)
        self.pool = Folded(nn.MaxPool2d(3, 2, 1, ceil_mode=True))
        self.head = nn.Linear(12 * 3 * 2, 7)

    def forward(self, x):
        y = self.first(x)
        both = torch.cat([self.grouped(y), self.depth(y)], 2)
        return self.head(self.pool(self.last(self.merge(both))).flatten(2))


def test_a_network_unlike_ours(tmp_path):
    torch.manual_seed(1)
    x = 2 * torch.rand(5, 3, 2, 9, 10)
    model = Odd()
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(2).add_(0.02)
    network = fold(settled(model, x), x)
    same(network, tmp_path, x, 5, flags=["-O1"])
    same(network, tmp_path, x, 5, integer=False, flags=SANITIZED)


ROWS = [
    {"kernel_size": 3, "padding": 1},
    {"kernel_size": (3, 5), "padding": (0, 2)},
    {"kernel_size": (1, 4), "padding": (0, 3)},  # the first column is read by the last tap alone
    {"kernel_size": 3, "padding": 4},  # more than the kernel: pixels that no column reaches
    {"kernel_size": 3, "padding": 1, "stride": (2, 1), "dilation": (2, 1)},
    {"kernel_size": 3, "padding": 1, "stride": (1, 2)},
    {"kernel_size": 3, "padding": 2, "dilation": (1, 2)},
    {"kernel_size": (3, 2), "groups": 2},
]


@pytest.mark.parametrize("options", ROWS, ids=str)
def test_convolutions_row_by_row_and_pixel_by_pixel(options, tmp_path):
    """Of real frames, of spikes in words of 16 and 32 bits, and of counts."""
    torch.manual_seed(3)
    layers = [nn.Conv2d(2, 16, **options), ss.LIF(0.4), nn.Conv2d(16, 34, **options), ss.LIF(0.3), nn.AvgPool2d(2, 1)]
    layers += [nn.Conv2d(34, 6, **options), ss.LIF(0.2), nn.Flatten(), nn.LazyLinear(5)]
    model = nn.Sequential(*(layer if isinstance(layer, ss.LIF) else Folded(layer) for layer in layers))
    x = 2 * torch.rand(4, 3, 2, 23, 22)
    model(x)
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(2).add_(0.02)
    network = fold(settled(model, x), x)
    same(network, tmp_path, x, 4, flags=SANITIZED)
    same(network, tmp_path, x, 4, flags=[*SANITIZED, *WIDE])
    same(network, tmp_path, x, 4, integer=False, flags=["-O1"])
    same(network, tmp_path, x, 4, integer=False, flags=WIDE)


def test_two_convolutions_of_different_widths_in_one_sum(tmp_path):
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Sequential(Folded(nn.Conv2d(1, 8, 3, padding=1)), ss.LIF(0.3))
            self.wide, self.narrow = (Folded(nn.Conv2d(8, 8, k, padding=k // 2)) for k in (5, 3))
            self.last, self.head = ss.LIF(0.3), nn.Linear(8 * 81, 4)

        def forward(self, x):
            y = self.first(x)
            return self.head(self.last(self.wide(y) + self.narrow(y) + y).flatten(2))

    torch.manual_seed(4)
    x = 3 * torch.rand(4, 3, 1, 9, 9)
    network = fold(settled(Two(), x), x)
    same(network, tmp_path, x, 4, flags=SANITIZED)
    same(network, tmp_path, x, 4, integer=False, flags=["-O1"])


def test_the_stack_stays_small_for_wide_images():
    """A row of sums of a wide image would not fit: its convolutions are added up pixel by pixel."""
    x = torch.rand(2, 1, 2, 3, 500)
    network = fold(
        nn.Sequential(Folded(nn.Conv2d(2, 32, 3, padding=1)), ss.LIF(0.4), nn.Flatten(2), nn.Linear(48000, 2)), x
    )
    assert c_texts(lower(network, integer=False)).writer.stack < 2**14


def test_one_axis_and_a_neuron_without_leak(tmp_path):
    torch.manual_seed(2)
    model = nn.Sequential(
        Folded(nn.Conv1d(3, 9, 5, stride=2, padding=2, dilation=1)), ss.IF(0.5), Folded(nn.Conv1d(9, 20, 3)),
        ss.LIF(0.3), nn.Flatten(2), nn.Linear(20 * 6, 5),
    )  # fmt: skip
    x = 2 * torch.rand(6, 4, 3, 16)
    same(fold(settled(model, x), x), tmp_path, x, 6, flags=["-O1"])


@pytest.mark.parametrize("pool", [nn.MaxPool1d(3, 2, 1, dilation=2), nn.AvgPool1d(2), nn.AdaptiveAvgPool1d(4)])
def test_pools_over_one_axis(pool, tmp_path):
    torch.manual_seed(2)
    model = nn.Sequential(
        Folded(nn.Conv1d(3, 9, 3, padding=1)), ss.LIF(0.5), Folded(nn.Sequential(pool, nn.Conv1d(9, 8, 3))),
        ss.LIF(0.2), nn.Flatten(2), nn.LazyLinear(5),
    )  # fmt: skip
    x = 2 * torch.rand(6, 4, 3, 16)
    network = fold(settled(model, x), x)
    same(network, tmp_path, x, 6, flags=["-O1"])
    same(network, tmp_path, x, 6, integer=False, flags=["-O1"])


def test_layers_are_called_at_every_optimization(tmp_path):
    """GCC 12 drops calls of this network at -O1 and -O2 if it may look into the layers."""
    model, x = trained("spikingresformer_tiny")
    network = fold(model, x)
    for flag in ("-O1", "-O2", "-O3"):
        same(network, tmp_path, x, 4, integer=False, flags=[flag])


def test_sanitizers_find_nothing(tmp_path):
    model, x = trained("qkformer_tiny")
    same(fold(model, x, mode="split"), tmp_path, x, 4, flags=SANITIZED)


def test_early_exit_is_that_of_the_stream(tmp_path):
    model, x = trained("resnet19_tiny")
    network = fold(model, x)
    c = CProgram(network, tmp_path, flags=["-O1"])
    logits = IntegerNetwork(network).run(x, 8)
    for confidence in (0.11, 0.13, 0.2):
        chosen, steps = first_decision(logits.double(), Confidence(confidence))
        table = np.frombuffer(c.run(x, 8, str(confidence)), np.dtype([("w", "<i4"), ("t", "<i4"), ("s", "<f4", (10,))]))
        assert table["w"].tolist() == chosen.tolist()
        assert table["t"].tolist() == steps.tolist()


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """A network as a shared library, called as a C program would call it."""
    folder = tmp_path_factory.mktemp("library")
    model, x = trained("resnet19_tiny")
    network = fold(model, x)
    export = export_c(network, folder, "lib")
    path = folder / "lib.so"
    subprocess.run([compiler(), *STRICT, "-O1", "-shared", "-fPIC", str(export.source), "-o", str(path)], check=True)
    return ctypes.CDLL(str(path)), export, network, x


def test_inputs_of_the_functions_are_bounded(library):
    lib, export, _, x = library
    net = ctypes.create_string_buffer(export.ram + 256)
    frame = np.ascontiguousarray(x[0].numpy())
    scores, result = (ctypes.c_float * 10)(), ctypes.create_string_buffer(48)

    def step(values):
        return lib.lib_step(net, None if values is None else values.ctypes.data_as(ctypes.c_void_p), scores)

    def run(values, steps, confidence):
        return lib.lib_run(net, values.ctypes.data_as(ctypes.c_void_p), steps, ctypes.c_float(confidence), result)

    assert lib.lib_init(None) == -1 and lib.lib_init(net) == 0
    assert step(None) == -1  # no image yet
    for bad in (math.nan, math.inf, -math.inf, 1e9):
        broken = frame.copy()
        broken.flat[7] = bad
        assert step(broken) == -2 and run(broken, 2, 0.5) == -2
    assert step(frame) == 0
    first = list(scores)
    assert step(None) == 0 and list(scores) != first  # the image of the step before
    assert run(frame, 0, 0.5) == -1 and run(frame, 2, 1.5) == -1 and run(frame, 2, math.nan) == -1
    assert run(frame, 2, 0.5) == 0
    lib.lib_init(net)
    assert step(frame) == 0 and list(scores) == first


def test_huge_inputs_do_not_overflow(tmp_path):
    model, x = trained("cnn7_tiny")
    c = CProgram(fold(model, x), tmp_path, flags=["-O1", "-fsanitize=undefined", "-fno-sanitize-recover"])
    c.run(torch.full_like(x, 65536.0), 4)
    c.run(torch.full_like(x, -65536.0), 4)


NAMES = ["*/ int main(void) { return 1; } /*", "??/", "\\", "<script>", "ünïcode", 'say "hi"\n', "int", "%s", ""]


def test_names_cannot_break_the_code(tmp_path):
    torch.manual_seed(0)
    layers = {f"{i} {name.replace('.', '')}": nn.Linear(6, 6) if i % 2 else ss.LIF(0.2) for i, name in enumerate(NAMES)}
    model = nn.Sequential()
    for name, layer in layers.items():
        model.add_module(name, layer)
    model.add_module("head", nn.Linear(6, len(NAMES)))
    x = 2 * torch.rand(3, 2, 6)
    network = fold(nn.Sequential(nn.Linear(6, 6), model).eval(), x)
    for name in ("int", "*/ bad", "9 lives", "__x", ""):
        export = export_c(
            network, tmp_path, name, main=True, facts={"classes": NAMES, "model": NAMES[0], "data": "?\\"}
        )
        subprocess.run([compiler(), *STRICT, str(export.source), "-o", str(tmp_path / "a.out")], check=True)
    text = export.source.read_text(encoding="ascii")
    assert "<script>" not in text.replace('"<script>"', "") and "??/" not in text
    assert "\\303\\274n" in text  # a class name in UTF-8


def test_what_has_no_c_form_is_named():
    model, x = trained("ms_resnet_tiny")
    with pytest.raises(CannotFold, match="reads real numbers"):
        lower(fold(model, x))

    class Late(nn.Module):
        def __init__(self):
            super().__init__()
            self.before, self.after = nn.Sequential(nn.Linear(6, 6), ss.LIF(0.2), nn.Linear(6, 6)), nn.Linear(6, 3)

        def forward(self, x):
            return self.after(torch.relu(self.before(x).mean(0)))

    x = 2 * torch.rand(3, 2, 6)
    with pytest.raises(CannotFold, match="relu after a mean over time"):
        lower(fold(Late().eval(), x), integer=False)


def test_memory_is_planned_and_said(library):
    _, export, network, _ = library
    header = export.header.read_text()
    assert f"LIB_RAM {export.ram} " in header and f"LIB_FLASH {export.flash} " in header
    weights = sum(t.numel() for node in network.graph for what, t in node.tensors.items() if what == "weight")
    assert weights <= export.flash < 2.2 * weights  # one byte each, biases and the float32 of the first layer
    neurons = sum(math.prod(node.shape) for node in network.graph.neurons())
    assert export.ram < 6 * neurons  # potentials in 2 or 4 bytes; spikes are bits, and no layer keeps currents
    texts = c_texts(lower(network, "lib"))
    assert "malloc" not in texts.source and "main(" not in texts.source
