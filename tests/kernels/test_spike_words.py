"""Spikes as bits, and the places where a gradient is needed, written by the C++ forward."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from steadyspike.core.spec import FAMILIES, Reset, ScanSpec
from steadyspike.core.surrogate import SURROGATES
from steadyspike.kernels.scan.contract import Call, OutputGradients, Scan
from steadyspike.kernels.scan.cpu.backend import CpuBackend
from steadyspike.kernels.scan.cpu.spike_words import SpikeWords
from tests.kernels.built import needs_kernel
from tests.kernels.scan_cases import TUNED

pytestmark = needs_kernel
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
SHAPES = [(4, 2, 3, 32, 5), (3, 1, 64), (18, 2, 8, 8, 8), (3, 64, 9)]


def unpacked(words: Tensor) -> Tensor:
    """[T, n] of bool."""
    return ((words[:, :, None] >> torch.arange(64)) & 1).flatten(1).bool()


def in_memory_order(out: Tensor) -> Tensor:
    """[T, n] of a dense [T, B, ...]."""
    return out.as_strided((out.shape[0], out[0].numel()), (out[0].numel(), 1))


def forward(
    x: Tensor, spec: ScanSpec, *, isa: int = -1, needed: bool = True, v: Tensor | None = None
) -> tuple[Tensor, SpikeWords]:
    u0, a = torch.full((1,), 0.2), torch.full((1,), 0.5)
    v = torch.ones(1) if v is None else v
    words = SpikeWords.like(x, needed)
    out = CpuBackend(isa=isa).forward(Scan(x, u0, v, a, Call.of(spec)), words)[0]
    return out, words


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_bits_are_the_output_that_is_not_zero(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0)).mul_(3).to(dtype)
    for spec in (ScanSpec(), ScanSpec("rs")):
        for isa in range(len(CpuBackend().instruction_sets)):
            out, words = forward(x, spec, isa=isa, needed=False)
            fired = in_memory_order(out) != 0
            assert torch.equal(unpacked(words.bits), fired)
            assert torch.equal(words.counts[:-1], fired.sum(1)) and not words.counts[-1] and words.needed is None


def test_bits_follow_the_memory_of_channels_last() -> None:
    x = torch.randn(3, 2, 8, 4, 6).mul_(3)
    x = x.flatten(0, 1).to(memory_format=torch.channels_last).unflatten(0, (3, 2))
    out, words = forward(x, ScanSpec(), v=torch.linspace(0.5, 2, 8))
    assert torch.equal(unpacked(words.bits), in_memory_order(out) != 0)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("surrogate", SURROGATES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_gradient_at_other_places_changes_nothing(family: str, surrogate: str, dtype: torch.dtype) -> None:
    """If nothing is needed, any gradient gives the results that 0 gives, bit for bit."""
    x = torch.randn(6, 2, 5, 9, 64, dtype=dtype).mul_(3)
    spec, one = ScanSpec(family, TUNED[surrogate]), torch.ones(1)
    words = SpikeWords.like(x, True)
    scan = Scan(x, one * 0.2, one, one * 0.5, Call.of(spec))
    CpuBackend().forward(scan, words)
    assert words.needed is not None
    needed = unpacked(words.needed).view(x.shape)
    g = torch.randn_like(x)
    everywhere = CpuBackend().backward(scan, OutputGradients(g))
    only_there = CpuBackend().backward(scan, OutputGradients(torch.where(needed, g, 0)))
    for got, want in zip(only_there, everywhere):
        assert torch.equal(got, want)
    spikes = unpacked(words.bits).view(x.shape)
    assert not (spikes & ~needed).any()
    windowed = surrogate in ("rect", "triangle", "dspike")
    assert bool((~needed).any()) == windowed


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_nan_leaves_its_block_without_bits(dtype: torch.dtype) -> None:
    """The block's gradient may then be needed everywhere; the other blocks have their bits."""
    x = torch.randn(4, 2, 512 * 128).mul_(3).to(dtype)
    x[2, 1, 7] = float("nan")
    out, words = forward(x, ScanSpec())
    assert words.counts[-1] and out.isnan().any() and words.needed is not None
    needed = unpacked(words.needed).view(x.shape)
    assert needed[:, 1, :512].all() and not needed[:, 0].all()
    assert torch.equal(unpacked(words.bits).view(x.shape)[:, 0], out[:, 0] != 0)


@pytest.mark.parametrize("case", ["hard reset", "float64", "V is infinite"])
def test_another_case_than_the_common_one_has_no_bits(case: str) -> None:
    x, wide = torch.randn(3, 2, 64), torch.float64 if case == "float64" else torch.float32
    words, constant = SpikeWords.like(x, True), torch.full((1,), 0.5, dtype=wide)
    spec = ScanSpec(reset=Reset("hard")) if case == "hard reset" else ScanSpec()
    v = constant * (torch.inf if "V" in case else 1)
    CpuBackend().forward(Scan(x.to(wide), constant, v, constant, Call.of(spec)), words)
    assert words.counts[-1] and words.needed is not None and (words.needed == -1).all()
    with pytest.raises(RuntimeError, match="out of range"):
        CpuBackend().forward(Scan(x[..., 1:].contiguous(), constant, v, constant, Call.of(spec)), words)


def test_out_of_the_cache_the_bits_are_the_same() -> None:
    x = torch.randn(4, 1, 1_100_032)
    out, words = forward(x, ScanSpec())
    assert torch.equal(unpacked(words.bits), in_memory_order(out) != 0)
