"""Where the time of one run goes: the convolutions by events and dense, the scan, the norm, and the rest."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch.nn import functional as F

from steadyspike.kernels.conv import call, function
from steadyspike.kernels.scan import fused, fused_gradients

RUNS = 4  # the shortest counts: until the heap has its final size, a run waits for new pages
# What is timed: (where it is looked up, its name there) by what it is. None of them calls another.
TIMED: dict[str, list[tuple[Any, str]]] = {
    "convolution forward by events": [(call, "conv_forward"), (function, "pack_weight")],
    "weight gradient by events": [(function, "conv_weight_gradient")],
    "input gradient at needed places": [(function, "conv_input_gradient")],
    "input gradient at all elements": [(function, "conv_full_input_gradient")],
    "look at the input": [(function, "known_spikes"), (function, "pack_spikes")],
    "scan forward (in evaluation with its convolution)": [(fused, "neuron_forward")],
    "scan backward": [(fused_gradients, "neuron_backward")],
    "norm: statistics": [(torch, "batch_norm_update_stats")],
    "norm: last step of the backward": [(fused_gradients, "norm_input_gradient")],
    "dense convolution forward": [(torch, "conv2d"), (F, "conv2d")],
    # The first layer's backward, which autograd calls itself, is in the rest.
    "dense convolution backward": [(function, "_dense_gradients"), (function, "_spread_input_gradient")],
}


@contextmanager
def _timed(seconds: dict[str, float]) -> Iterator[None]:
    def wrapped(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            start = time.perf_counter()
            try:
                return original(*args, **options)
            finally:
                seconds[name] = seconds.get(name, 0.0) + time.perf_counter() - start

        return call

    with ExitStack() as stack:
        for name, places in TIMED.items():
            for owner, attribute in places:
                stack.enter_context(patch.object(owner, attribute, wrapped(name, getattr(owner, attribute))))
        yield


def shares(run: Callable[[], object]) -> dict[str, float]:
    """Seconds by part of the shortest run, in the order of `TIMED`; then "the rest", and "all"."""
    best = min((_parts(run) for _ in range(RUNS)), key=lambda seconds: seconds["all"])
    actual = {name: best[name] for name in TIMED if name in best}
    return {**actual, "the rest": best["all"] - sum(actual.values()), "all": best["all"]}


def _parts(run: Callable[[], object]) -> dict[str, float]:
    """Seconds of one run by the parts that `_timed` times, and "all"."""
    seconds: dict[str, float] = {}
    start = time.perf_counter()
    with _timed(seconds):
        run()
    return {**seconds, "all": time.perf_counter() - start}


def share_table(title: str, actual: dict[str, float]) -> str:
    """Milliseconds and per cent of the whole."""
    lines = [f"**{title}: {1e3 * actual['all']:.0f} ms**\n", "| part | ms | share |", "|---|---|---|"]
    rows = [(name, value) for name, value in actual.items() if name != "all" and value > 0]
    return "\n".join(lines + [f"| {name} | {1e3 * t:.0f} | {t / actual['all']:.0%} |" for name, t in rows])
