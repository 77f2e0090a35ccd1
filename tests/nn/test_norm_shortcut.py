"""A shortcut's norm inside of the one node of norm and scan; test_norm_neuron.py compares values and gradients."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import steadyspike as ss
from steadyspike.kernels.scan.cpu.norm_gradient import norm_input_gradient, norm_sums
from steadyspike.nn.memory.track import MemoryTracker
from steadyspike.nn.norm import BNTT, TAB, TDBN, TEBN
from tests.kernels.built import needs_kernel
from tests.nn.norm_cases import in_one, inputs, layers, one_by_one, run, step

pytestmark = needs_kernel


def test_a_second_norm_that_does_not_fit_is_computed(fused: list[bool]) -> None:
    tensors = inputs("norm")

    def hooked(parts: nn.ModuleList) -> None:
        parts[2].register_forward_hook(lambda *a: None)

    def frozen(parts: nn.ModuleList) -> None:
        parts[2].eval()

    for change in (hooked, frozen):
        parts = layers("norm")
        change(parts)
        plain = copy.deepcopy(parts)
        got, want = step(in_one, parts, tensors), step(one_by_one, plain, tensors)
        assert (got["out"] != want["out"]).float().mean() < 1e-2
        assert torch.equal(got["2.running_mean"], want["2.running_mean"])
    assert fused == [False] * 2
    parts = layers("norm").eval()
    run(in_one, parts, tensors)
    assert fused == [False] * 3


@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
def test_an_evaluation_without_gradients_computes_no_second_norm(fused: list[bool], layout: str) -> None:
    parts, tensors = layers("norm"), inputs("norm", torch.float32, layout)
    run(in_one, parts, tensors)
    parts.eval()
    fused.clear()
    with torch.no_grad():
        got = run(in_one, parts, tensors)
        want = run(one_by_one, parts, tensors)
    assert fused == [True] and want.count_nonzero()
    assert (got != want).float().mean() < 1e-3


@pytest.mark.parametrize("kinds", [(TEBN, TEBN), (TDBN, TEBN), (TEBN, TDBN), (BNTT, TAB)])
def test_an_evaluation_with_values_per_step(kinds: tuple[type, type]) -> None:
    """One norm may be part of the node; the scan cannot add two maps with values per step."""
    neuron, tensors, norms = ss.LIF().eval(), inputs("norm", torch.float64), []
    for kind in kinds:
        norm = (kind(6) if kind is TDBN else kind(6, 5)).double()
        for tensor in norm.state_dict().values():
            tensor.copy_(torch.rand(tensor.shape) + 0.5)
        norms.append(norm.eval())
    with torch.no_grad():
        want = one_by_one(norms[0], neuron, norms[1], *tensors)
        assert torch.equal(in_one(norms[0], neuron, norms[1], *tensors), want) and want.any()


def test_a_network_keeps_no_output_of_a_shortcuts_norm(fused: list[bool]) -> None:
    net = ss.models.create("resnet19_tiny", image_size=32, dropout=0.0).to(memory_format=torch.channels_last)
    hooked = copy.deepcopy(net)
    for block in hooked.modules():
        if hasattr(block, "shortcut") and not isinstance(block.shortcut, nn.Identity):
            block.shortcut.register_forward_hook(lambda *a: None)
    x, live = torch.randn(4, 3, 32, 32), []
    for one in (net, hooked):
        with MemoryTracker() as tracker:
            out = one(x)
            live.append(tracker.live)
            del out
    assert sum(fused) == 2  # the first blocks of the second and third stage of the first network
    kept = sum(4 * 4 * channels * size * size * 4 for channels, size in ((16, 16), (32, 8)))
    assert live[1] - live[0] >= 0.9 * kept


@pytest.mark.parametrize("looks", ["nobody", "at the norm", "at the neuron"])
def test_a_norm_that_is_also_the_shortcuts_moves_its_statistics_in_one_order(fused: list[bool], looks: str) -> None:
    """The shortcut's batch first, with and without hooks: the newer batch weighs more."""
    norm, neuron, _ = layers("norm", torch.float64)
    y, side = inputs("norm", torch.float64)
    expected = copy.deepcopy(norm)
    expected(side), expected(y)
    if looks != "nobody":
        (norm if looks == "at the norm" else neuron).register_forward_hook(lambda *seen: None)
    in_one(norm, neuron, norm, y, side)
    assert fused == ([True] if looks == "nobody" else [])
    for name, buffer in expected.named_buffers():
        torch.testing.assert_close(dict(norm.named_buffers())[name], buffer, msg=name)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("rows", [1, 63, 64 * 64, 3 * 64 * 64 + 70])
def test_the_sums_of_the_second_norm(dtype, rows):
    """Equal for any number of threads, and exact for large means and many rows."""
    generator = torch.Generator().manual_seed(0)
    g, y = ((torch.randn(1, rows, 1, 1, 21, generator=generator) + at).to(dtype).movedim(-1, 2) for at in (0, 100))
    mean = y.mean((0, 1, 3, 4))
    before, results = torch.get_num_threads(), []
    try:
        for count in (1, 2, 5):
            torch.set_num_threads(count)
            results.append(norm_sums(g, y, mean))
    finally:
        torch.set_num_threads(before)
    assert all(r is not None and torch.equal(r, results[0]) for r in results)
    expected = (g.double() * (y.double() - mean.double().view(-1, 1, 1))).sum((0, 1, 3, 4))
    atol = (1e-6 if dtype == torch.float32 else 1e-14) * (rows**0.5 + 1)
    torch.testing.assert_close(results[0], expected, rtol=0, atol=atol)
    assert norm_sums(g.contiguous(), torch.ones(2, 3, 4, 5, 6), mean) is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("last", [True, False])
def test_the_last_step_of_a_norm(dtype, last):
    """Its constants per channel are computed in float64 and rounded once."""
    generator = torch.Generator().manual_seed(0)
    order = torch.channels_last_3d if last else torch.contiguous_format
    shape = (2, 5, 3, 4, 4)
    g, y = (
        torch.randn(shape, generator=generator).to(dtype).movedim(2, 1).contiguous(memory_format=order).movedim(1, 2)
        for _ in range(2)
    )
    mean, invstd, scale = (torch.rand(3, generator=generator).to(dtype) + 0.5 for _ in range(3))
    sums = torch.randn(2, 3, generator=generator, dtype=torch.float64)
    dy, dweight, dbias = norm_input_gradient(g, y, sums, mean, invstd, scale, reuse=False)
    by_weight = sums[1] * invstd
    by_y = -(scale * invstd) * (by_weight / 160)
    constant = -scale * (sums[0] / 160) - mean * by_y
    a, b, c = (number.to(dtype).view(3, 1, 1) for number in (scale, by_y, constant))
    assert torch.equal(dy, a * g + b * y + c)
    assert torch.equal(dweight, by_weight.to(dtype)) and torch.equal(dbias, sums[0].to(dtype))
