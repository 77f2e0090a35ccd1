"""The CPU runtime gives what the folded network gives: the spikes of every layer and the output."""

from __future__ import annotations

from functools import cache, partial

import pytest
import torch
from torch import Tensor, nn

import steadyspike as ss
from steadyspike.deploy import FoldedNetwork, fold
from steadyspike.deploy.network import spikes_of_layers
from steadyspike.deploy.runtime import Runtime, compile
from steadyspike.deploy.runtime.native_layer import layer_library
from steadyspike.deploy.runtime.values import Bits
from steadyspike.kernels.library import instruction_sets
from steadyspike.models.model_registry import entry, names
from steadyspike.nn.time import Folded
from tests.deploy.trained import settle, trained

library = layer_library()
pytestmark = pytest.mark.skipif(isinstance(library, str), reason=str(library))
SETS = [] if isinstance(library, str) else instruction_sets(library)
TINY = [name for name in names() if name.endswith("_tiny")]
# Sums are rounded in another order, and what fires once too often or too rarely changes what comes after it.
DIFFER = 1e-4


@cache
def folded(name: str, **options: object) -> tuple[FoldedNetwork, Tensor]:
    if "tie_stream_threshold" in entry(name).option_names():
        options = {"tie_stream_threshold": True, **options}
    model, x = trained(name, **options)
    return fold(model, x, check=False), x


def spikes_of(runtime: Runtime, x: Tensor, timesteps: int | None = None) -> tuple[dict[str, Tensor], Tensor]:
    seen: dict[str, Tensor] = {}

    def watch(node, value):
        if node.op == "lif" and isinstance(value, Bits):
            seen[node.name] = value.numbers > 0

    out = runtime.run(x, timesteps, watch)
    return seen, out


def assert_same(
    network: FoldedNetwork, runtime: Runtime, x: Tensor, timesteps: int | None = None, *, silent_layers: int = 0
) -> None:
    expected, logits = spikes_of_layers(network, x, timesteps)
    actual, out = spikes_of(runtime, x, timesteps)
    assert list(actual) == list(expected)
    different = sum(int((actual[name] != expected[name]).sum()) for name in expected)
    total = sum(s.numel() for s in expected.values())
    assert all(actual[name].shape == expected[name].shape for name in expected)
    silent = [name for name, spikes in expected.items() if not bool(spikes.any())]
    assert len(silent) <= silent_layers, f"layers that never fire prove nothing: {silent}"
    assert different <= DIFFER * total, f"{different} of {total} spikes differ"
    assert out.shape == logits.shape and out.dtype == logits.dtype
    if different == 0:
        torch.testing.assert_close(out, logits, rtol=1e-4, atol=1e-4 * float(logits.abs().max()))


@pytest.mark.parametrize("way", ["auto", "events", "dense"])
@pytest.mark.parametrize("name", TINY)
def test_every_registered_network(name, way):
    network, x = folded(name)
    assert_same(network, compile(network, way=way), x)


@pytest.mark.parametrize("instructions", SETS)
@pytest.mark.parametrize("threads", [1, 2])
def test_threads_and_instruction_sets_give_the_same_bits(instructions, threads):
    network, x = folded("resnet19_tiny")
    before = torch.get_num_threads()
    expected, logits = spikes_of(compile(network, way="events"), x)
    try:
        torch.set_num_threads(threads)
        actual, out = spikes_of(compile(network, way="events", instructions=instructions), x)
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(actual[name], expected[name]) for name in expected)
    torch.testing.assert_close(out, logits)


@pytest.mark.parametrize("batch", [0, 1, 2, 7])
def test_any_batch_size(batch):
    network, x = folded("resnet19_tiny")
    x = torch.cat([x, x.flip(0), x])[:batch]
    runtime = compile(network, way="events")
    out = runtime(x)
    assert out.shape == network(x).shape
    if batch:
        assert_same(network, runtime, x)
        alone = torch.cat([runtime(x[i : i + 1]) for i in range(batch)], 1)
        torch.testing.assert_close(out, alone)


@pytest.mark.parametrize("steps", [1, 3, 16, 17, 35])
def test_any_number_of_time_steps(steps):
    network, x = folded("resnet19_tiny")
    assert_same(network, compile(network, way="events"), x[:2], steps)


@pytest.mark.parametrize("norm", ["tebn", "bntt"])
@pytest.mark.parametrize("way", ["events", "dense"])
def test_constants_per_step(norm, way):
    network, x = folded("resnet19_tiny", norm=norm)
    assert_same(network, compile(network, way=way), x)


@pytest.mark.parametrize(
    "options", [{"reset": "hard"}, {"strict": True}, {"decay_input": False}, {"gradient": "rs"}], ids=str
)
def test_other_neurons(options):
    model, x = trained("resnet19_tiny", neuron=partial(ss.LIF, **options))
    network = fold(model, x, check=False)
    assert_same(network, compile(network, way="events"), x)


@pytest.mark.parametrize("neuron", ["plif", "if", "ltmd"])
def test_other_kinds_of_neuron(neuron):
    network, x = folded("cnn7_tiny", neuron=neuron)
    assert_same(network, compile(network, way="events"), x)


@pytest.mark.parametrize("mode", ["split", "graded"])
def test_streams_of_unequal_thresholds(mode):
    model, x = trained("sew_resnet34_tiny")
    network = fold(model, x, mode=mode, check=False)
    assert_same(network, compile(network), x)


def small(channels: int, **options: object) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        Folded(nn.Conv2d(2, channels, 3, padding=1)), Folded(nn.BatchNorm2d(channels)), ss.LIF(channels=channels),
        Folded(nn.MaxPool2d(3, 2, 1)),
        Folded(nn.Conv2d(channels, 12, (3, 2), stride=(2, 1), padding=(1, 0), dilation=(1, 2), **options)),
        Folded(nn.BatchNorm2d(12)), ss.LIF(), Folded(nn.AvgPool2d(3, 1, 1)),
        Folded(nn.Conv2d(12, 8, 1)), Folded(nn.BatchNorm2d(8)), ss.LIF(),
        nn.Flatten(2), nn.Linear(72, 30), Folded(nn.BatchNorm1d(30)), ss.LIF(), nn.Linear(30, 5), ss.Readout(),
    )  # fmt: skip


@pytest.mark.parametrize("channels", [6, 64, 70, 130])
@pytest.mark.parametrize("way", ["events", "dense"])
def test_a_users_own_network(channels, way):
    x = 2 * torch.rand(5, 3, 2, 11, 9)
    network = fold(settle(small(channels), x), x, check=False)
    runtime = compile(network, way=way)
    assert_same(network, runtime, x)
    assert runtime.report().fallbacks == []


def pooled(size: tuple[int, int], pool: nn.Module, **conv: object) -> tuple[FoldedNetwork, Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(
        Folded(nn.Conv2d(2, 70, 3, padding=1)), Folded(nn.BatchNorm2d(70)), ss.LIF(), Folded(pool),
        Folded(nn.Conv2d(70, 12, 3, **conv)), Folded(nn.BatchNorm2d(12)), ss.LIF(), nn.Flatten(2),
    )  # fmt: skip
    x = 2 * torch.rand(3, 2, 2, *size)
    return fold(settle(model, x), x, check=False), x


@pytest.mark.parametrize("conv", [{}, {"padding": 1}, {"stride": 2, "padding": 1}], ids=str)
@pytest.mark.parametrize("window", [2, (3, 2)])
def test_a_convolution_behind_an_average_pool_runs_by_events(window, conv):
    network, x = pooled((12, 8), nn.AvgPool2d(window), **conv)
    for way in ("events", "dense", "auto"):
        runtime = compile(network, way=way)
        assert_same(network, runtime, x)
        if way != "auto":
            assert runtime.last_ways["4.layer"] == way


@pytest.mark.parametrize(
    ("size", "pool", "conv"),
    [
        ((13, 8), nn.AvgPool2d(2), {}),
        ((12, 8), nn.AvgPool2d(3, 1, 1), {}),
        ((12, 8), nn.AvgPool2d(2), {"dilation": 2, "padding": 2}),
    ],
    ids=["a rest", "overlapping", "dilated"],
)
def test_other_average_pools_make_it_dense(size, pool, conv):
    network, x = pooled(size, pool, **conv)
    runtime = compile(network, way="events")
    assert_same(network, runtime, x)
    assert runtime.last_ways["4.layer"] == "dense"


def test_what_has_no_code_on_bits_falls_back_and_is_named():
    x = 2 * torch.rand(5, 3, 2, 11, 9)
    network = fold(settle(small(6, groups=2), x), x, check=False)
    assert_same(network, compile(network), x)
    network, x = folded("spikformer_tiny")
    report = compile(network).report()
    assert any("attention" in name for name in report.fallbacks)
    assert all(name in str(report) for name in report.fallbacks)
    network, x = folded("resnet19_tiny")
    assert compile(network).report().fallbacks == []


def test_initial_potential_per_neuron():
    network, x = folded("resnet19_tiny")
    node = network.graph["body.layer1.0.lif1"]
    node.tensors["start"] = torch.linspace(0, 0.6, 8 * 16 * 16).view(8, 16, 16)
    network = FoldedNetwork(network.graph)
    assert_same(network, compile(network, way="events"), x)


def test_nan_is_not_silence():
    network, x = folded("resnet19_tiny")
    x = x.clone()
    x[0, 0, 0, 0] = float("nan")
    out, expected = compile(network)(x), network(x)
    assert bool(out[:, 0].isnan().any())
    torch.testing.assert_close(out, expected, equal_nan=True)


def test_later_changes_of_the_network_are_not_seen():
    network, x = folded("vgg9_tiny")
    network = FoldedNetwork(network.graph)
    runtime = compile(network)
    before = runtime(x)
    for buffer in network.buffers():
        buffer.zero_()
    torch.testing.assert_close(runtime(x), before)


def test_one_clear_line():
    network, x = folded("cnn7_tiny")
    runtime = compile(network)
    with pytest.raises(ValueError, match="takes"):
        runtime(x[..., 1:])
    with pytest.raises(ValueError, match="unknown way"):
        compile(network, way="sparse")
    with pytest.raises(ValueError, match="instruction set"):
        compile(network, instructions="avx1024")
    with pytest.raises(TypeError, match="float32"):
        compile(FoldedNetwork(network.graph).double())
