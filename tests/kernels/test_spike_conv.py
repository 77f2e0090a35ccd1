"""The C++ spike convolution against float64: every shape, rate, memory order, instruction set and thread count."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from steadyspike.kernels.conv import call
from steadyspike.kernels.conv.geometry import ConvGeometry
from steadyspike.kernels.library import instruction_sets
from steadyspike.kernels.spikes.packed import pack_spikes

LIBRARY = call.conv_library()
pytestmark = pytest.mark.skipif(isinstance(LIBRARY, str), reason="the C++ extension is not built")
# AVX-512 is compiled, and runs here if there is such a CPU.
SETS = [] if isinstance(LIBRARY, str) else instruction_sets(LIBRARY)

# steps, batch, in, height, width, out, kernel, stride, padding, dilation
SHAPES = {
    "odd sizes": (2, 3, 5, 7, 6, 9, (3, 3), (1, 1), (1, 1), (1, 1)),
    "one of everything": (1, 1, 1, 1, 1, 1, (1, 1), (1, 1), (0, 0), (1, 1)),
    "whole blocks": (3, 2, 64, 8, 8, 64, (3, 3), (1, 1), (1, 1), (1, 1)),
    "tails of channels, stride": (2, 2, 70, 9, 11, 100, (3, 3), (2, 2), (1, 1), (1, 1)),
    "1x1 with stride": (2, 2, 16, 9, 11, 40, (1, 1), (2, 2), (0, 0), (1, 1)),
    "5x5": (2, 2, 33, 12, 10, 20, (5, 5), (1, 1), (2, 2), (1, 1)),
    "dilation": (2, 2, 33, 12, 10, 20, (3, 3), (1, 1), (2, 2), (2, 2)),
    "stride and dilation": (2, 2, 33, 12, 10, 130, (3, 3), (3, 3), (0, 0), (2, 2)),
    "linear": (1, 1, 200, 1, 13, 70, (1, 1), (1, 1), (0, 0), (1, 1)),
    "parts of an image": (1, 2, 20, 20, 70, 17, (3, 3), (1, 1), (1, 1), (1, 1)),
    "many rows": (1, 1, 3, 300, 10, 3, (3, 3), (1, 1), (0, 0), (1, 1)),
    "7x7 with stride": (2, 1, 8, 13, 13, 8, (7, 7), (2, 2), (3, 3), (1, 1)),
    "axes differ": (2, 2, 6, 5, 9, 10, (1, 3), (1, 2), (0, 1), (1, 3)),
    "stride above kernel": (1, 2, 6, 11, 13, 10, (2, 1), (5, 4), (1, 0), (1, 1)),
    "padding above kernel": (1, 2, 6, 4, 4, 10, (2, 2), (1, 1), (3, 3), (1, 1)),
    "rows as one if few fire": (1, 2, 128, 6, 5, 70, (3, 3), (1, 1), (1, 1), (1, 1)),
    "five steps": (5, 2, 33, 6, 7, 40, (3, 3), (1, 1), (1, 1), (1, 1)),
    "ten steps, stride": (10, 1, 20, 7, 7, 17, (3, 3), (2, 2), (1, 1), (1, 1)),
    "more channels than a chunk": (1, 2, 150, 5, 5, 70, (3, 3), (1, 1), (1, 1), (1, 1)),
}
RATES = [0.0, 0.01, 0.1, 0.5, 1.0]


def case(name, rate, channels_last, seed=0):
    """(geometry, fired as float [images, C, H, W] in memory order, weight, bias, gradient of the output)"""
    generator = torch.Generator().manual_seed(seed)
    g = ConvGeometry(*SHAPES[name], channels_last)
    fired = g.empty_input().copy_(torch.rand(g.empty_input().shape, generator=generator) < rate)
    weight = torch.randn(g.out_channels, g.in_channels, *g.kernel, generator=generator)
    bias = torch.randn(g.out_channels, generator=generator)
    gradient = g.empty_output().copy_(torch.randn(g.empty_output().shape, generator=generator))
    return g, fired, weight, bias, gradient


def bits(g, x):
    return pack_spikes(x.unflatten(0, (g.steps, g.batch)), torch.ones(1)).words


def dense(g, x, weight, bias, gradient):
    """In float64: (output, gradient of x, of the weight)."""
    x, weight = x.double().requires_grad_(), weight.double().requires_grad_()
    out = F.conv2d(x, weight, bias.double(), g.stride, g.padding, g.dilation)
    return out.detach(), *torch.autograd.grad(out, (x, weight), gradient.double())


def close(seen, expected, terms):
    """A float sum of so many terms: its error grows with their number, not with luck."""
    assert seen.shape == expected.shape
    bound = 2e-7 * (terms**0.5 + 2) * (expected.abs().max().item() + 1)
    assert (seen.double() - expected).abs().max().item() <= bound


@pytest.mark.parametrize("isa", range(len(SETS)), ids=SETS)
@pytest.mark.parametrize("channels_last", [False, True], ids=["NCHW", "NHWC"])
@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("name", SHAPES)
def test_equals_float64(name, rate, channels_last, isa, threads):
    g, fired, weight, bias, gradient = case(name, rate, channels_last)
    level = torch.rand(g.in_channels, generator=torch.Generator().manual_seed(1)) + 0.5
    words = bits(g, fired)
    for levels in (level[:1].clone(), level):
        x = fired * levels.view(-1, 1, 1)
        out, dx, dw = dense(g, x, weight, bias, gradient)
        one = levels.numel() == 1
        packed = call.pack_weight(g, weight, None if one else levels, isa=isa)
        scale = float(levels) if one else 1.0
        seen = call.conv_forward(g, words, packed, scale, bias, isa=isa)
        assert seen.stride() == g.empty_output().stride()
        close(seen, out, g.taps * g.in_channels)
        close(call.conv_weight_gradient(g, words, gradient, levels, weight, isa=isa), dw, out.numel())
    places = g.empty_input().copy_(torch.rand(fired.shape, generator=torch.Generator().manual_seed(2)) < max(rate, 0.3))
    seen = call.conv_input_gradient(g, bits(g, places), gradient, weight, isa=isa)
    assert not seen[places == 0].any()
    close(seen, dx * places, g.taps * g.out_channels)


WINOGRAD = ["odd sizes", "whole blocks", "parts of an image", "many rows", "five steps", "more channels than a chunk"]


@pytest.mark.parametrize("isa", range(len(SETS)), ids=SETS)
@pytest.mark.parametrize("name", WINOGRAD)
def test_the_full_input_gradient_against_float64(name, isa, threads):
    g, fired, weight, bias, gradient = case(name, 0.1, channels_last=True)
    assert g.has_full_input_gradient
    _, expected, _ = dense(g, fired, weight, bias, gradient)
    for order in (torch.contiguous_format, torch.channels_last):
        seen = call.conv_full_input_gradient(g, gradient, weight.contiguous(memory_format=order), isa=isa)
        assert seen.stride() == g.empty_input().stride()
        close(seen, expected, g.taps * g.out_channels)
    direct = torch.nn.grad.conv2d_input(fired.shape, weight, gradient, g.stride, g.padding)
    errors = [(value.double() - expected).norm() for value in (seen, direct)]
    assert errors[0] <= 2 * errors[1]


@pytest.mark.parametrize("padding", [(0, 0), (2, 1), (5, 3)])
def test_the_full_input_gradient_for_any_padding(padding, threads):
    g = ConvGeometry(2, 2, 20, 7, 10, 40, (3, 3), (1, 1), padding)
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(40, 20, 3, 3, generator=generator)
    gradient = g.empty_output().copy_(torch.randn(g.empty_output().shape, generator=generator))
    x = torch.zeros(4, 20, 7, 10)
    close(
        call.conv_full_input_gradient(g, gradient, weight), dense(g, x, weight, weight[:, 0, 0, 0], gradient)[1], 9 * 40
    )


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_the_full_input_gradient_tells_what_is_not_finite(bad):
    for spoiled in ("weight", "gradient"):
        g, _, weight, _, gradient = case("odd sizes", 0.0, channels_last=True)
        {"weight": weight, "gradient": gradient}[spoiled][-1, -1, -1, -1] = bad
        assert call.conv_full_input_gradient(g, gradient, weight) is None


@pytest.mark.parametrize("channels_last", [False, True], ids=["NCHW", "NHWC"])
@pytest.mark.parametrize("name", ["whole blocks", "tails of channels, stride", "linear", "more channels than a chunk"])
def test_threads_do_not_show(name, channels_last):
    """Bit for bit, for any number of threads."""
    g, fired, weight, bias, gradient = case(name, 0.2, channels_last)
    words, level = bits(g, fired), torch.ones(1)
    seen = []
    before = torch.get_num_threads()
    try:
        for count in (1, 2, 3, 7):
            torch.set_num_threads(count)
            seen.append((
                call.conv_forward(g, words, call.pack_weight(g, weight), 1.0, bias),
                call.conv_weight_gradient(g, words, gradient, level, weight),
                call.conv_input_gradient(g, words, gradient, weight),
            ))  # fmt: skip
            if g.has_full_input_gradient:
                seen[-1] += (call.conv_full_input_gradient(g, gradient, weight),)
    finally:
        torch.set_num_threads(before)
    for other in seen[1:]:
        assert all(torch.equal(a, b) for a, b in zip(seen[0], other))


@pytest.mark.parametrize("channels_last", [False, True], ids=["NCHW", "NHWC"])
@pytest.mark.parametrize("name", SHAPES)
def test_instruction_sets_do_not_show(name, channels_last):
    """Sums are added up in the same order, however many channels a register holds."""
    g, fired, weight, bias, gradient = case(name, 0.3, channels_last)
    words, level, seen = bits(g, fired), torch.ones(1), []
    for isa in range(len(SETS)):
        packed = call.pack_weight(g, weight, isa=isa)
        out = call.conv_forward(g, words, packed, 1.0, bias, isa=isa)
        seen.append((out, call.conv_weight_gradient(g, words, gradient, level, weight, isa=isa)))
    for other in seen[1:]:
        assert all(torch.equal(a, b) for a, b in zip(seen[0], other))


def test_a_pair_of_steps_that_overflows_takes_the_dense_way():
    """The sum of two gradients may be infinite though neither is."""
    g, fired, weight, _, gradient = case("whole blocks", 1.0, True)
    gradient.fill_(3e38)
    assert call.conv_weight_gradient(g, bits(g, fired), gradient, torch.ones(1), weight) is None


@pytest.mark.parametrize("order", [torch.contiguous_format, torch.channels_last])
def test_the_weight_may_lie_in_memory_in_any_order(order):
    g, fired, weight, _, gradient = case("tails of channels, stride", 0.2, True)
    other = weight.contiguous(memory_format=order)
    assert torch.equal(call.pack_weight(g, other), call.pack_weight(g, weight))
    dw = call.conv_weight_gradient(g, bits(g, fired), gradient, torch.ones(1), other)
    assert dw.stride() == other.stride()
    assert torch.equal(dw, call.conv_weight_gradient(g, bits(g, fired), gradient, torch.ones(1), weight))


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("channels_last", [False, True], ids=["NCHW", "NHWC"])
def test_what_is_not_finite_is_told(bad, channels_last):
    """0 times it would be NaN in the dense convolution."""
    g, fired, weight, _, gradient = case("tails of channels, stride", 0.0, channels_last)
    weight[-1, -1, -1, -1] = bad
    assert call.pack_weight(g, weight) is None
    assert call.conv_input_gradient(g, bits(g, fired), gradient, weight) is None
    gradient[-1, -1, -1, -1] = bad
    assert call.conv_weight_gradient(g, bits(g, fired), gradient, torch.ones(1), weight) is None


def test_wrong_arguments_are_refused():
    g, fired, weight, bias, gradient = case("odd sizes", 0.3, True)
    words, packed = bits(g, fired), call.pack_weight(g, weight)
    with pytest.raises(ValueError, match="bits must be"):
        call.conv_forward(g, words[:1], packed)
    with pytest.raises(ValueError, match="another geometry"):
        call.conv_forward(g, words, packed[:-1])
    with pytest.raises(ValueError, match="weight must have shape"):
        call.pack_weight(g, weight[:1])
    with pytest.raises(ValueError, match="float32"):
        call.pack_weight(g, weight.double())
    with pytest.raises(ValueError, match="gradient must have"):
        call.conv_weight_gradient(g, words, gradient.contiguous(), torch.ones(1), weight)
    with pytest.raises(ValueError, match="bias must be"):
        call.conv_forward(g, words, packed, 1.0, bias[:1])
    for other in (ConvGeometry(*SHAPES["odd sizes"], False), ConvGeometry(*SHAPES["tails of channels, stride"])):
        assert not other.has_full_input_gradient
        weight = torch.randn(other.out_channels, other.in_channels, 3, 3)
        with pytest.raises(RuntimeError, match="out of range"):
            call.conv_full_input_gradient(other, other.empty_output(), weight)
    assert not call.supports(ConvGeometry(1, 1, 1, 100, 100, 1, (1, 1), (9, 9)))


@pytest.mark.parametrize("channels", [64, 100, 128, 200])
def test_the_order_of_a_sum_does_not_depend_on_the_threads(channels):
    generator = torch.Generator().manual_seed(0)
    rates = torch.linspace(0.01, 0.2, 16)[:, None]  # of rows: parts of an image differ in how many neurons fire
    x = (torch.rand(4, channels, 16, 16, generator=generator) < rates).float()
    words = pack_spikes(x.contiguous(memory_format=torch.channels_last).unsqueeze(0), torch.ones(1)).words
    g = ConvGeometry(1, 4, channels, 16, 16, 64, (3, 3), (1, 1), (1, 1))
    packed = call.pack_weight(g, torch.randn(64, channels, 3, 3, generator=generator))
    before = torch.get_num_threads()
    try:
        results = []
        for count in (1, 2, 7):
            torch.set_num_threads(count)
            results.append(call.conv_forward(g, words, packed))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(result, results[0]) for result in results)


@pytest.mark.parametrize("channels", [5, 32, 70])
def test_pixels_whose_bits_begin_with_a_word(channels):
    generator = torch.Generator().manual_seed(0)
    x = (torch.rand(3, channels, 9, 7, generator=generator) < 0.2).float().contiguous(memory_format=torch.channels_last)
    weight = torch.randn(20, channels, 3, 3, generator=generator)
    g = ConvGeometry(3, 1, channels, 9, 7, 20, (3, 3), (2, 1), (1, 1))
    padded = F.pad(x, (0, 0, 0, 0, 0, -channels % 64)).contiguous(memory_format=torch.channels_last)
    words = pack_spikes(padded.unsqueeze(1), torch.ones(1)).words
    wide = replace(g, pixel_bits=padded.shape[1])
    packed = call.pack_weight(g, weight)
    expected = call.conv_forward(g, pack_spikes(x.unsqueeze(1), torch.ones(1)).words, packed)
    assert expected.any() and torch.equal(call.conv_forward(wide, words, packed), expected)
    with pytest.raises(RuntimeError, match="out of range"):
        call.conv_input_gradient(wide, words, expected, weight)
    with pytest.raises(RuntimeError, match="out of range"):
        call.conv_weight_gradient(wide, words, expected, torch.ones(1), weight)
    with pytest.raises(ValueError, match="contiguous int64"):
        call.conv_forward(g, words, packed)
    assert call.supports(wide) and not call.supports(replace(wide, channels_last=False))
