"""Convolution and scan as one call: outputs, potentials and bits equal those of two calls, bit for bit."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

import steadyspike as ss
from steadyspike.kernels.conv.call import ConvInput, pack_weight
from steadyspike.kernels.conv.geometry import ConvGeometry
from steadyspike.kernels.scan.cpu import neuron_calls
from steadyspike.kernels.scan.cpu.neuron_calls import Build, Start
from steadyspike.kernels.scan.fused import fused_scan
from steadyspike.kernels.scan.fused_job import fused_job
from steadyspike.kernels.spikes.note import known_spikes
from steadyspike.kernels.spikes.packed import pack_spikes
from tests.kernels.built import ISAS, needs_kernel

pytestmark = needs_kernel

# batch, in, height, width, out, kernel, stride, padding, dilation: rows of the output are multiples of 64 elements
SHAPES = {
    "parts of an image": (2, 32, 32, 32, 32, (3, 3)),
    "several images": (5, 128, 4, 4, 128, (3, 3)),
    "two orders of a sum": (2, 100, 16, 16, 64, (3, 3)),
    "a shorter last part": (1, 20, 13, 16, 24, (3, 3)),
    "tails of channels": (3, 70, 9, 8, 104, (3, 3)),
    "stride": (2, 33, 16, 16, 64, (3, 3), (2, 2)),
    "1x1": (3, 64, 8, 8, 16, (1, 1), (1, 1), (0, 0)),
    "dilation": (2, 16, 12, 16, 20, (3, 3), (1, 1), (2, 2), (2, 2)),
    "axes differ": (2, 16, 6, 32, 16, (1, 3), (1, 2), (0, 1), (1, 1)),
    "wide rows": (1, 8, 3, 300, 64, (3, 3)),
}
SPECS = {
    "trsg": {},
    "as": {"gradient": "as"},
    "hard reset": {"reset": "hard"},  # not the common case of csrc/scan/fast.h
    "strict": {"strict": True, "decay_input": False},
}


def convolution(name: str, steps: int, rate: float = 0.15, bias: bool = True) -> ConvInput:
    generator = torch.Generator().manual_seed(0)
    batch, *rest = SHAPES[name]
    g = ConvGeometry(steps, batch, *rest, **({} if len(rest) > 5 else {"padding": (1, 1)}))
    # parts of the output differ in how many neurons fire below them
    rates = torch.linspace(0, 2 * rate, g.height)[:, None]
    fired = (torch.rand(g.images, g.in_channels, g.height, g.width, generator=generator) < rates).float()
    fired = fired.contiguous(memory_format=torch.channels_last)
    packed = pack_weight(g, torch.randn(g.out_channels, g.in_channels, *g.kernel, generator=generator) / 3)
    words = pack_spikes(fired.unsqueeze(0), torch.ones(1))
    assert packed is not None and words is not None
    # as the layers do: the images of all steps are one batch
    g = replace(g, steps=1, batch=g.images)
    return ConvInput(g, words.words, packed, 0.7, torch.randn(g.out_channels, generator=generator) if bias else None)


def scan(
    conv: ConvInput, steps: int, fused: bool, spec: ss.LIF, norm: tuple[object, ...] = (), spikes: object = None
) -> list[Tensor]:
    """Output, U[T], and the bits; fused: without the convolution's output in memory."""
    y = torch.full_like(conv.run(), float("nan")) if fused else conv.run()
    y = y.unflatten(0, (steps, -1))
    generator = torch.Generator().manual_seed(1)
    v = torch.rand(y.shape[2], generator=generator) + 0.4
    job = fused_job(y, v, torch.full((1,), 0.6), Start(None, 0.1), spec.spec)
    assert job is not None
    job.potential, job.spikes, job.conv = True, spikes, conv if fused else None  # type: ignore[assignment]
    with torch.no_grad():
        out, u, _ = fused_scan(job, y, v, torch.full((1,), 0.6), None, *norm)
    bits = known_spikes(out)
    return [out, u] + ([] if bits is None else [bits.words, bits.counts])


def assert_equal(conv: ConvInput, steps: int, spec: ss.LIF, *options: object) -> None:
    expected = scan(conv, steps, False, spec, *options)  # type: ignore[arg-type]
    actual = scan(conv, steps, True, spec, *options)  # type: ignore[arg-type]
    assert expected[0].any() and len(actual) == len(expected)
    for a, e in zip(actual, expected):
        assert torch.equal(a, e) and a.stride() == e.stride()


@pytest.mark.parametrize("steps", [1, 4])
@pytest.mark.parametrize("name", SHAPES)
def test_every_shape(name: str, steps: int, threads: int) -> None:
    assert_equal(convolution(name, steps), steps, ss.LIF())


@pytest.mark.parametrize("options", SPECS.values(), ids=list(SPECS))
@pytest.mark.parametrize("steps", [2, 3, 8, 17])
def test_every_number_of_steps(options: dict[str, object], steps: int) -> None:
    assert_equal(convolution("stride", steps, bias=False), steps, ss.LIF(**options))  # type: ignore[arg-type]


@pytest.mark.parametrize("per_step", [False, True])
@pytest.mark.parametrize("extra", ["none", "numbers", "scaled numbers", "spikes"])
@pytest.mark.parametrize("name", ["parts of an image", "several images", "a shorter last part"])
def test_norm_and_residual(name: str, extra: str, per_step: bool) -> None:
    conv = convolution(name, 4)
    like = conv.run().unflatten(0, (4, -1))
    generator = torch.Generator().manual_seed(2)
    shape = (4, like.shape[2]) if per_step else (like.shape[2],)
    scale, shift = torch.rand(shape, generator=generator) + 0.5, torch.randn(shape, generator=generator) / 5
    other = torch.empty_like(like).copy_(torch.randn(like.shape, generator=generator))
    norm: tuple[object, ...] = (scale, shift)
    spikes = None
    if extra == "spikes":
        other = (other > 1).float()
        spikes = pack_spikes(other)
    if extra != "none":
        norm = (*norm, other)
    if extra == "scaled numbers":
        norm = (*norm, torch.rand(like.shape[2], generator=generator), torch.zeros(like.shape[2]))
    norm = (*norm, None, None, None)[:5]
    assert_equal(conv, 4, ss.LIF(), norm, spikes)


@pytest.mark.parametrize("isa", ISAS)
def test_every_instruction_set(isa: int, monkeypatch: pytest.MonkeyPatch) -> None:
    conv = convolution("tails of channels", 4)
    expected = scan(conv, 4, True, ss.LIF())
    forward = neuron_calls.neuron_forward
    monkeypatch.setattr(
        "steadyspike.kernels.scan.fused.neuron_forward", lambda *args, **kw: forward(*args, **kw, build=Build(isa=isa))
    )
    assert all(torch.equal(a, e) for a, e in zip(scan(conv, 4, True, ss.LIF()), expected))


def test_a_weight_that_makes_nan_is_computed_as_the_reference_does() -> None:
    conv = convolution("parts of an image", 4)
    conv = conv._replace(bias=torch.full((32,), float("nan")).masked_fill(torch.arange(32) > 3, 0.0))
    expected, actual = (scan(conv, 4, fused, ss.LIF()) for fused in (False, True))
    assert expected[1].isnan().any() and len(actual) == len(expected) == 2
    for a, e in zip(actual, expected):
        torch.testing.assert_close(a, e, rtol=0, atol=0, equal_nan=True)


def test_bad_arguments_are_refused() -> None:
    conv = convolution("parts of an image", 4)
    wrong = conv._replace(geometry=replace(conv.geometry, channels_last=False))
    with pytest.raises(RuntimeError, match="out of range"):
        scan(wrong, 4, True, ss.LIF())
    fits = conv.run().unflatten(0, (4, -1))
    job = fused_job(fits[:, :1].contiguous(), torch.ones(1), torch.ones(1), Start(None, 0.1), ss.LIF().spec)
    assert job is not None
    job.conv = conv  # of two images per step
    with pytest.raises(RuntimeError, match="out of range"), torch.no_grad():
        fused_scan(job, fits[:, :1].contiguous(), torch.ones(1), torch.ones(1))
