"""One layer whose input is spikes, by events and by torch's dense convolution, in one run.

    python -m benchmarks.spike_conv [--threads N] [--repeats N] [--rates 1 5 10 20 50] [--only 128] [--planes]
                                    [--markdown docs/spike-convolution.md]

Prints the dense time divided by that of events: forward (with the look at the input) and weight gradient at these
firing rates, input gradient at these shares of the elements; shortest of the repeats, the two sides in turn. "dense"
marks what the rule of kernels/conv/rule.py leaves to the dense convolution, "full" a choice of the input gradient at
all elements in C++, "slower" a choice of ours that takes more than 5 % longer. Freed memory is kept.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from benchmarks import machine, result_tables

import steadyspike as ss
from steadyspike.kernels.conv.call import (
    conv_forward,
    conv_full_input_gradient,
    conv_input_gradient,
    conv_weight_gradient,
    instruction_set,
    pack_weight,
)
from steadyspike.kernels.conv.geometry import conv_geometry
from steadyspike.kernels.conv.rule import (
    COSTS,
    forward_by_events,
    input_gradient_by_places,
    input_gradient_in_full,
    weight_gradient_by_events,
)
from steadyspike.kernels.spikes.packed import pack_spikes

MARKS = ("<!-- layers: written by benchmarks/spike_conv.py -->", "<!-- end of layers -->")
PARTS = ("forward", "weight gradient", "input gradient")
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


def cells(layer: tuple[int, ...], rate: float, order: torch.memory_format, repeats: int) -> list[str]:
    """Returns the forward's ratio, the weight gradient's and the input gradient's.

    rate: the share of the input that fires, and whose gradient is needed
    """
    channels, out, side, kernel, stride, images = layer
    pad, costs = kernel // 2, COSTS[instruction_set()]
    weight = torch.randn(out, channels, kernel, kernel).contiguous(memory_format=order)
    x = spikes((images, channels, side, side), rate, order)
    g = conv_geometry(x, weight, (stride, stride), (pad, pad), (1, 1))
    assert g is not None
    packed, one = pack_spikes(x.unsqueeze(0)), torch.ones(1)
    assert packed is not None
    places = pack_spikes(spikes(tuple(x.shape), rate, order).unsqueeze(0))
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
    at_places = input_gradient_by_places(g, int(places.counts.sum()), costs)
    full = not at_places and input_gradient_in_full(g, costs)

    def input_gradient() -> object:
        if full:
            return conv_full_input_gradient(g, gradient, weight)
        return conv_input_gradient(g, places.words, gradient, weight)

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
            input_gradient,
            at_places or full,
        ),
    ]
    ratios = []
    for dense, events, chosen in sides:
        a, b = shortest(repeats, dense, events)
        ratios.append(f"{a / b:.2g}" + (" slower" if b > 1.05 * a else "") * chosen + " dense" * (not chosen))
    ratios[2] += " full" * full
    return ratios


def table(args: argparse.Namespace) -> str:
    order = torch.contiguous_format if args.planes else torch.channels_last
    head = ["layer", "part", *(f"{rate:g} %" for rate in args.rates)]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for layer in LAYERS:
        if args.only not in (None, layer[0]):
            continue
        channels, out, side, kernel, stride, images = layer
        name = f"{channels} to {out}, {side}x{side}, {kernel}x{kernel}/{stride}, N {images}"
        by_rate = [cells(layer, rate / 100, order, args.repeats) for rate in args.rates]
        for title, part, ratios in zip((name, "", ""), PARTS, zip(*by_rate)):
            lines.append(f"| {title} | {part} | {' | '.join(ratios)} |")
            print(lines[-1], flush=True)
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--rates", type=float, nargs="+", default=[1, 5, 10, 20, 30, 40, 50], help="per cent")
    parser.add_argument("--only", type=int, help="layers with so many input channels")
    parser.add_argument("--planes", action="store_true", help="channels first in memory, not last")
    parser.add_argument("--markdown", type=Path, help="a file with the marks between which the table goes")
    args = parser.parse_args()
    if args.markdown and (problem := result_tables.why_not_writable(args.markdown, MARKS)):
        parser.error(problem)
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    ss.keep_freed_memory()
    described = machine.describe(args.threads)
    text = table(args)
    if args.markdown:
        when = f"Commit {described['commit']}, {described['time'][:10]}"
        head = f"{when}; {args.threads} thread(s), shortest of {args.repeats + 1}."
        result_tables.put_between_marks(args.markdown, result_tables.kind(described), f"{head}\n\n{text}", MARKS)


if __name__ == "__main__":
    main()
