"""Dense or events: which of the two is faster for a call, predicted from its shape and the counted spikes.

The constants are nanoseconds of one thread, fitted by hand to early measurements of the kernels on an AMD EPYC with
AVX2; ``benchmarks/spike_conv.py`` shows where a call would have been faster the other way.
Both sides divide by the number of threads alike, so that only their ratio matters; what a call takes in any case does
not, and counts once for every thread (`for_threads`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

from steadyspike.kernels.conv.geometry import ConvGeometry


@dataclass(frozen=True)
class Costs:
    """Of one instruction set.

    dense, dense_weight, dense_input: a multiplication of the dense forward, weight gradient and input gradient; as a
        product of matrices (`ConvGeometry.is_matrix`) all three take the time of the first.
    add, add_weight, product: an addition of the event loops, per output channel; product: of the input gradient.
    listed: to find a spike and put it on a list. visit: to look up a list, per output pixel and tap. element: to look
        at an input element. output: to write an output element. weight: to bring a weight into order.
    call: what a call takes in any case, in one thread.
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

    @lru_cache(maxsize=64)  # noqa: B019 - of constants
    def for_threads(self, threads: int) -> Costs:
        return replace(self, call=self.call * threads)


AVX2 = Costs(0.022, 0.035, 0.022, 0.052, 0.085, 0.07, 2.0, 3.0, 0.26, 0.5, 1.0, 150_000.0)
COSTS = {
    "base": AVX2,  # both sides take about twice the time
    "avx2": AVX2,
    # Not measured: the dense side is taken to be twice as fast, and additions, which wait for loads, by half.
    "avx512": Costs(0.011, 0.018, 0.011, 0.035, 0.057, 0.047, 2.0, 3.0, 0.26, 0.5, 1.0, 150_000.0),
}
MARGIN = 0.9  # events must promise this share of the dense time, or less


def _padded(channels: int) -> int:
    """Output channels that are summed, the unused ones of the last block included."""
    block = 64 if channels > 32 else 32 if channels > 16 else 16
    return -(-channels // block) * block


def forward_by_events(g: ConvGeometry, spikes: int, costs: Costs) -> bool:
    """``spikes``: how many of the input's elements."""
    return spikes < _limits(g, costs).forward


def weight_gradient_by_events(g: ConvGeometry, spikes: int, costs: Costs) -> bool:
    return spikes < _limits(g, costs).weight_gradient


def input_gradient_by_places(g: ConvGeometry, places: int, costs: Costs) -> bool:
    """``places``: how many elements of the input's gradient are asked for."""
    return places < _limits(g, costs).input_gradient


class _Limits(NamedTuple):
    """The number of spikes, or places, from which on the dense function is chosen."""

    forward: float
    weight_gradient: float
    input_gradient: float


@lru_cache(maxsize=4096)
def _limits(g: ConvGeometry, costs: Costs) -> _Limits:
    outputs, weights = g.work / (g.taps * g.in_channels), g.taps * g.in_channels * g.out_channels
    met = g.work / (g.inputs * g.out_channels)  # output pixels that meet an input element
    sums, blocks = met * _padded(g.out_channels), -(-g.out_channels // 64)
    chunks = -(-g.in_channels // (128 if g.taps >= 9 else 512))
    always = weights * costs.weight + costs.call
    visits = outputs / g.out_channels * g.taps * blocks * costs.visit
    forward = visits + g.inputs * costs.element + outputs * costs.output + always
    return _Limits(
        _limit(g.work * costs.dense, forward, sums * costs.add + costs.listed),
        _limit(
            g.work * costs.dense_weight,
            outputs * costs.output * chunks + always,
            sums * costs.add_weight + costs.listed * blocks,
        ),
        _limit(g.work * costs.dense_input, always, sums * costs.product + costs.listed),
    )


def _limit(dense: float, fixed: float, each: float) -> float:
    """The n from which on fixed + each * n is no longer below `MARGIN` times the dense time."""
    left = MARGIN * dense - fixed
    return left / each if each > 0 else math.copysign(math.inf, left)
