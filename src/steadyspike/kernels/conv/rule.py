"""Predicts which is faster for a call, dense or events, from its shape and the number of spikes.

The constants are nanoseconds of one thread, fitted by hand to ``benchmarks/spike_conv.py`` at rates from 1 to 50 % on
two AMD EPYC: Zen 3 with AVX2 and Zen 5 with AVX-512. The benchmark marks calls that would have been faster the other
way. Several threads divide the time of both ways, so only their ratio matters. The fixed cost of a call is not divided;
it is paid by every thread (`for_threads`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

from steadyspike.kernels.conv.geometry import ConvGeometry
from steadyspike.kernels.layout import KEPT_SHAPES


@dataclass(frozen=True)
class Costs:
    """The costs of one instruction set.

    dense, dense_weight, dense_input: a multiplication of the dense forward, weight gradient and input gradient
    matrix: the same for all three if torch multiplies matrices (see `_by_matrix`); 0: as above
    add, add_weight, product: an addition of the event loops, per output channel; product is that of the input gradient
    add_far, product_far: ``add`` and ``product`` if the weights of a block of output channels do not stay in the
        second-level cache; 0: the same
    listed: to find a spike and put it on a list
    visit: to look up a list, per output pixel and tap; per kernel row or kernel if the lists under it are one
    element: to check an input element; see `BITS_ONLY`
    output: to write an output element
    weight: to rearrange a weight
    call: the fixed cost of a call, in one thread
    weight_gradient: to write a weight's gradient
    per_place: to add up the products for an element of the input gradient, per block of output channels
    word: to check 64 channels of a pixel for the lists of the weight gradient, per block of output channels
    near: bytes of a block's weights that stay in the second-level cache
    dense_element: to read or write an element of the input or output densely
    tile: to copy an element of the output's gradient for the input gradient
    full: a multiplication of the dense input gradient, if `conv_full_input_gradient` computes it
    full_element: to transform an element of the input or output there
    full_weight: to transform a weight there
    threads: how many threads run the call
    """

    dense: float
    dense_weight: float
    dense_input: float
    add: float
    add_weight: float
    product: float
    listed: float
    visit: float
    element: float
    output: float
    weight: float
    call: float
    add_far: float = 0.0
    weight_gradient: float = 0.0
    per_place: float = 0.0
    word: float = 0.0
    near: int = 512 << 10
    dense_element: float = 0.0
    tile: float = 0.0
    product_far: float = 0.0
    matrix: float = 0.0
    full: float = math.inf
    full_element: float = 0.0
    full_weight: float = 0.0
    threads: int = 1

    @lru_cache(maxsize=64)  # noqa: B019 - of constants
    def for_threads(self, threads: int) -> Costs:
        return replace(self, call=self.call * threads, threads=threads)


AVX2 = Costs(
    dense=0.022,
    dense_weight=0.031,
    dense_input=0.022,
    add=0.038,
    add_weight=0.065,
    product=0.058,
    listed=2.0,
    visit=8.0,
    element=0.26,
    output=0.5,
    weight=5.0,
    call=150_000.0,
    add_far=0.052,
    weight_gradient=6.0,
    full=0.008,
    full_element=0.5,
    full_weight=9.0,
)
AVX512 = Costs(
    dense=0.0073,
    dense_weight=0.0088,
    dense_input=0.0073,
    add=0.011,
    add_weight=0.01,
    product=0.011,
    listed=1.0,
    visit=3.0,
    element=0.2,
    output=0.4,
    weight=2.5,
    call=100_000.0,
    add_far=0.018,
    weight_gradient=6.0,
    per_place=2.0,
    word=6.0,
    near=1 << 20,
    dense_element=0.25,
    tile=0.6,
    product_far=0.014,
    matrix=0.018,
    full=0.0031,
    full_element=0.4,
    full_weight=4.0,
)
COSTS = {"base": AVX2, "avx2": AVX2, "avx512": AVX512}  # base: both ways take about twice the time
# If the weights of a kernel, or of one of its rows, have at most this size, csrc/conv/conv_sums.h
# processes the lists under it as one.
KERNEL_BYTES, ROW_BYTES = 36 << 10, 48 << 10
BITS_ONLY = 0.25  # the share of `Costs.element` if the bits are known: values need not be read
MARGIN = 0.9  # events are chosen if their predicted time is at most this share of the dense time


def _block(channels: int) -> int:
    """Returns the number of output channels that are summed together."""
    return 64 if channels > 32 else 32 if channels > 16 else 16


def _visits(g: ConvGeometry) -> int:
    """Returns the number of lists that are looked up per output pixel and block of output channels."""
    row = g.kernel[1] * g.in_channels * _block(g.out_channels) * 4
    if g.dilation[1] > 1 or row > ROW_BYTES:
        return g.taps
    return 1 if g.kernel[0] * row <= KERNEL_BYTES else g.kernel[0]


def forward_by_events(g: ConvGeometry, spikes: int, costs: Costs, noted: bool = False) -> bool:
    """Predicts the forward's time.

    spikes: the number of spikes in the input
    noted: the bits are known: values are not checked, and elements that no output reads cost nothing
    """
    limits = _limits(g, costs)
    return spikes < (limits.forward_of_bits if noted else limits.forward)


def weight_gradient_by_events(g: ConvGeometry, spikes: int, costs: Costs) -> bool:
    return spikes < _limits(g, costs).weight_gradient


def input_gradient_by_places(g: ConvGeometry, places: int, costs: Costs) -> bool:
    """Predicts the input gradient's time.

    places: for how many elements the input's gradient is needed
    """
    return places < _limits(g, costs).input_gradient


def input_gradient_in_full(g: ConvGeometry, costs: Costs) -> bool:
    """Predicts whether `conv_full_input_gradient` is faster than the dense function."""
    return _limits(g, costs).full


class _Limits(NamedTuple):
    """Contains the number of spikes, or elements, from which on another way is chosen.

    full: True if the input gradient is then computed by `conv_full_input_gradient`; otherwise all ways are dense
    """

    forward: float
    forward_of_bits: float
    weight_gradient: float
    input_gradient: float
    full: bool


def _by_matrix(g: ConvGeometry, threads: int) -> bool:
    """Returns True if torch's dense convolution is a product of matrices: 1x1, few images, one thread.

    All others run in oneDNN, which takes less than half the time with AVX-512.
    """
    return g.taps == 1 and g.stride == (1, 1) and g.images < 16 and threads == 1


@lru_cache(maxsize=KEPT_SHAPES)
def _limits(g: ConvGeometry, costs: Costs) -> _Limits:
    outputs, weights = g.work / (g.taps * g.in_channels), g.taps * g.in_channels * g.out_channels
    met = g.work / (g.inputs * g.out_channels)  # the number of output pixels that read an input element
    block = _block(g.out_channels)
    blocks = -(-g.out_channels // block)
    sums = met * blocks * block  # additions per input element, including those for unused channels of the last block
    far = g.taps * g.in_channels * block * 4 > costs.near
    add, product = (
        (costs.add_far or costs.add, costs.product_far or costs.product) if far else (costs.add, costs.product)
    )
    chunks = -(-g.in_channels // (128 if g.taps >= 9 else 512))
    dense = costs.dense, costs.dense_weight, costs.dense_input
    if costs.matrix and _by_matrix(g, costs.threads):
        dense = (costs.matrix,) * 3
    packing = weights * costs.weight + costs.call
    moved = (g.inputs + outputs) * costs.dense_element
    visits = outputs / g.out_channels * blocks * _visits(g) * costs.visit
    words = g.inputs * g.read_share / g.in_channels * -(-g.in_channels // 64)  # of the bits of all pixels
    listed = costs.listed * g.read_share
    dense_input, full = g.work * dense[2] + moved, math.inf
    if g.has_full_input_gradient:
        full = (
            g.work * costs.full + (g.inputs + outputs) * costs.full_element + weights * costs.full_weight + costs.call
        )
    forward, forward_of_bits = (
        _limit(
            g.work * dense[0] + moved,
            visits + g.inputs * share * costs.element + outputs * costs.output + packing,
            sums * add + listed,
        )
        for share in (1.0, BITS_ONLY * g.read_share)
    )
    return _Limits(
        forward,
        forward_of_bits,
        _limit(
            g.work * dense[1] + moved,
            words * blocks * costs.word
            + outputs * costs.output * chunks
            + weights * costs.weight_gradient
            + costs.call,
            sums * costs.add_weight + listed * blocks,
        ),
        _limit(
            min(dense_input, full / MARGIN),
            g.inputs * costs.output + outputs * costs.tile + packing,
            sums * product + costs.per_place * blocks + listed,
        ),
        full < MARGIN * dense_input,
    )


def _limit(dense: float, fixed: float, each: float) -> float:
    """Returns the n from which on fixed + each * n is not below `MARGIN` times the dense time."""
    left = MARGIN * dense - fixed
    return left / each if each > 0 else math.copysign(math.inf, left)
