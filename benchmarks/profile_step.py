"""Where the time of a ResNet-19 training step goes: shares by kind of operator, from torch's profiler.

python -m benchmarks.profile_step [--width 0.25] [--batch 16] [--threads 1] [--contender "SteadySpike, save_memory"]
"""

from __future__ import annotations

import argparse

import torch
from benchmarks import tasks
from benchmarks.cases import NetworkCase
from benchmarks.contenders import NETWORKS, OURS
from torch.profiler import ProfilerActivity, profile

# The first kind that matches an operator's name counts.
KINDS = {
    "convolution, backward": ("convolution_backward",),
    "convolution, forward": ("convolution", "conv2d", "mkldnn"),
    "batch norm, backward": ("batch_norm_backward",),
    "batch norm, forward": ("batch_norm",),
    "LIF scan": ("_Direct", "lif_scan", "steadyspike", "_Scan"),
    "copies": ("copy_", "clone", "contiguous"),
    "additions": ("add",),
}


def kind_of(name: str) -> str:
    return next((kind for kind, parts in KINDS.items() if any(part in name for part in parts)), "other")


def shares(contender: str, case: NetworkCase, steps: int) -> tuple[dict[str, float], float]:
    """Share of the operators' own time by kind, and seconds per step."""
    train = tasks.prepare(case, contender)["train"]
    for _ in range(2):
        train()
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        for _ in range(steps):
            train()
    times: dict[str, float] = {}
    for event in profiler.key_averages():
        kind = kind_of(event.key)
        times[kind] = times.get(kind, 0.0) + event.self_cpu_time_total
    total = sum(times.values())
    return {kind: time / total for kind, time in times.items()}, total / steps / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=float, default=0.25)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--contender", default=OURS, choices=list(NETWORKS))
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    case = NetworkCase(args.width, args.batch)
    actual, seconds = shares(args.contender, case, args.steps)
    print(f"{case}, {args.contender}, {args.threads} thread(s): {seconds * 1e3:.0f} ms a step")
    for kind, share in sorted(actual.items(), key=lambda item: -item[1]):
        print(f"{share:7.1%}  {kind}")


if __name__ == "__main__":
    main()
