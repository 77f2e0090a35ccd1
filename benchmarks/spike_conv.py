"""One layer whose input is spikes, by events and by torch's dense convolution, in one run.

    python benchmarks/spike_conv.py [--threads N] [--repeats N] [--rates 1 5 10 20 50] [--only 128] [--places 30]

Forward (with the look at the input), weight gradient, and input gradient at some of the places (30 %); shortest of the
repeats, the two sides in turn. Every cell shows what the rule of kernels/conv/rule.py chooses; a row in which such a
choice is more than 5 % slower than dense is marked.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F

import steadyspike as ss
from steadyspike.kernels.conv.call import (
    conv_forward,
    conv_input_gradient,
    conv_weight_gradient,
    instruction_set,
    pack_weight,
)
from steadyspike.kernels.conv.geometry import conv_geometry
from steadyspike.kernels.conv.rule import COSTS, forward_by_events, input_gradient_by_places, weight_gradient_by_events
from steadyspike.kernels.spikes.packed import pack_spikes

# in, out, side, kernel, stride, images
LAYERS = [
    (128, 128, 32, 3, 1, 16),
    (256, 256, 16, 3, 1, 16),
    (512, 512, 8, 3, 1, 32),
    (64, 64, 16, 3, 1, 64),
    (32, 32, 32, 3, 1, 32),
    (64, 64, 4, 3, 1, 128),
    (32, 32, 8, 3, 1, 128),
    (16, 16, 16, 3, 1, 128),
    (16, 32, 16, 3, 2, 128),
    (128, 256, 32, 3, 2, 16),
    (128, 256, 32, 1, 2, 16),
    (512, 10, 1, 1, 1, 256),
    (4096, 1024, 1, 1, 1, 64),
]


def shortest(repeats: int, *functions: Callable[[], object]) -> list[float]:
    """Milliseconds of each, measured in turn."""
    times = [float("inf")] * len(functions)
    for _ in range(repeats + 1):
        for i, function in enumerate(functions):
            start = time.perf_counter()
            function()
            times[i] = min(times[i], time.perf_counter() - start)
    return [1e3 * t for t in times]


def spikes(shape: tuple[int, ...], rate: float, order: torch.memory_format) -> torch.Tensor:
    return (torch.rand(shape) < rate).float().contiguous(memory_format=order)


def measure(
    layer: tuple[int, ...], rate: float, asked: float, order: torch.memory_format, repeats: int
) -> tuple[list[str], bool]:
    """rate, asked: shares of the input that fire, and whose gradient is asked for."""
    channels, out, side, kernel, stride, images = layer
    pad, costs = kernel // 2, COSTS[instruction_set()]
    weight = torch.randn(out, channels, kernel, kernel).contiguous(memory_format=order)
    x = spikes((images, channels, side, side), rate, order)
    g = conv_geometry(x, weight, (stride, stride), (pad, pad), (1, 1))
    assert g is not None
    packed, one = pack_spikes(x.unsqueeze(0)), torch.ones(1)
    assert packed is not None
    places = pack_spikes(spikes(tuple(x.shape), asked, order).unsqueeze(0))
    assert places is not None
    gradient = torch.randn(images, out, *g.out_size).contiguous(memory_format=order)

    def forward() -> None:
        bits = pack_spikes(x.unsqueeze(0))
        order = pack_weight(g, weight)
        assert bits is not None and order is not None
        conv_forward(g, bits.words, order)

    def dense_backward(mask: tuple[bool, bool]) -> object:
        return torch.ops.aten.convolution_backward(
            gradient, x, weight, None, g.stride, g.padding, g.dilation, False, (0, 0), 1, (*mask, False)
        )

    count = int(packed.counts.sum())
    sides = [
        (
            lambda: F.conv2d(x, weight, None, g.stride, g.padding),
            forward,
            forward_by_events(g, count, costs),
        ),
        (
            lambda: dense_backward((False, True)),
            lambda: conv_weight_gradient(g, packed.words, gradient, one, weight),
            weight_gradient_by_events(g, count, costs),
        ),
        (
            lambda: dense_backward((True, False)),
            lambda: conv_input_gradient(g, places.words, gradient, weight),
            input_gradient_by_places(g, int(places.counts.sum()), costs),
        ),
    ]
    cells, slow = [], False
    for dense, events, chosen in sides:
        a, b = shortest(repeats, dense, events)
        slow |= chosen and b > 1.05 * a
        cells.append(f"{a:.2f} / {b:.2f} = {a / b:.2f}{' events' if chosen else ' dense'}")
    return cells, slow


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--rates", type=float, nargs="+", default=[1, 5, 10, 20, 30, 50], help="per cent")
    parser.add_argument("--places", type=float, default=30, help="per cent of the input whose gradient is asked for")
    parser.add_argument("--only", type=int, help="layers with so many input channels")
    parser.add_argument("--planes", action="store_true", help="channels first in memory, not last")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    ss.keep_freed_memory()
    order = torch.contiguous_format if args.planes else torch.channels_last
    print(f"{instruction_set()}, {args.threads} threads, {'NCHW' if args.planes else 'NHWC'}; dense / events in ms\n")
    print(f"| layer | rate | forward | weight gradient | input gradient at {args.places:g} % | |")
    print("|---|---|---|---|---|---|")
    for layer in LAYERS:
        if args.only in (None, layer[0]):
            for rate in args.rates:
                cells, slow = measure(layer, rate / 100, args.places / 100, order, args.repeats)
                channels, out, side, kernel, stride, images = layer
                name = f"{channels} to {out}, {side}x{side}, {kernel}x{kernel}/{stride}, N {images}"
                print(f"| {name} | {rate:g} % | {' | '.join(cells)} | {'slower' if slow else ''} |", flush=True)


if __name__ == "__main__":
    main()
