"""Spikes as bits: exact or refused."""

import pytest
import torch

from steadyspike.kernels.spikes.packed import pack_spikes as pack
from steadyspike.kernels.spikes.words import can_pack
from tests.kernels.scan_cases import arrange

SHAPES = [(3, 2, 5, 4, 4), (1, 1, 1), (2, 3), (4, 1, 8, 1), (2, 3, 7), (3, 7, 5, 11, 4)]


def spikes(shape, level, dtype=torch.float32, rate=0.4):
    fired = torch.rand(shape, generator=torch.Generator().manual_seed(0)) < rate
    level = level.view(-1, *([1] * (len(shape) - 3))) if level.numel() > 1 else level
    return fired * level.to(dtype)


@pytest.fixture(params=["C++", "torch"])
def path(request, monkeypatch):
    """Both ways to pack; the C++ functions exist if there was a compiler."""
    if request.param == "torch":
        monkeypatch.setattr("steadyspike.kernels.spikes.packed.can_pack", lambda x: False)
    elif not can_pack(torch.ones(1)):
        pytest.skip("the C++ extension is not built")
    return request.param


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("layout", ["contiguous", "channels_last", "permuted"])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("level", [1.0, 0.7310585975646973, -2.5e-3, 3e3])
def test_one_level(path, shape, layout, dtype, level):
    level = torch.tensor([level]).to(dtype)
    x = arrange(spikes(shape, level, dtype), layout)
    bits = pack(x, level)
    assert bits.words.shape == (x.shape[0], -(-x[0].numel() // 64))
    assert bits.counts.tolist() == (x != 0).flatten(1).sum(1).tolist()
    assert bits.unpack().dtype == dtype
    assert torch.equal(bits.unpack(), x)


@pytest.mark.parametrize("layout", ["contiguous", "channels_last", "permuted"])
def test_a_level_per_channel(path, layout):
    level = torch.tensor([0.1, 0.7, 1.3, 2.9, 1e-3])
    x = arrange(spikes((3, 2, 5, 4, 4), level), layout)
    assert torch.equal(pack(x, level).unpack(), x)


@pytest.mark.parametrize("rate", [0.0, 1.0])
def test_silent_and_saturated(path, rate):
    level = torch.tensor([0.5])
    x = spikes((2, 3, 7), level, rate=rate)
    assert torch.equal(pack(x, level).unpack(), x)


@pytest.mark.parametrize("wrong", [float("nan"), 0.25, 0.50000006, -0.5, float("inf")])
def test_anything_else_is_refused(path, wrong):
    level = torch.tensor([0.5])
    x = spikes((2, 3, 7), level)
    x[1, 2, 3] = wrong
    assert pack(x, level) is None


def test_what_is_not_one_block_of_memory_is_refused(path):
    level = torch.tensor([1.0])
    assert pack(torch.ones(2, 3, 8)[:, :, ::2], level) is None
    assert pack(torch.ones(1, 3, 4).expand(5, 3, 4), level) is None
    assert pack(torch.ones(2, 0, 4), level) is None


def test_both_ways_give_the_same_bits(monkeypatch):
    if not can_pack(torch.ones(1)):
        pytest.skip("the C++ extension is not built")
    level = torch.rand(5, generator=torch.Generator().manual_seed(1)) + 0.1
    x = arrange(spikes((3, 20, 5, 4, 9), level), "channels_last")
    packed = pack(x, level).words
    monkeypatch.setattr("steadyspike.kernels.spikes.packed.can_pack", lambda x: False)
    assert torch.equal(pack(x, level).words, packed)


@pytest.mark.parametrize("threads", [1, 3])
def test_large_tensors_in_threads(threads):
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        level = torch.tensor([0.9])
        x = spikes((4, 40, 8, 15, 15), level)
        assert torch.equal(pack(x, level).unpack(), x)
        x[3, 39, 7, 14, 14] = 0.3
        assert pack(x, level) is None
    finally:
        torch.set_num_threads(before)
