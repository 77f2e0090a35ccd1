"""Times two checkouts of this repository in turns, so that a machine that changes its speed changes it for both.

    python benchmarks/compare_commits.py OLD NEW [--rounds 8] [--seconds 0.5] [--only resnet19]

OLD, NEW: folders with a checkout and its built kernel. Every round runs each checkout once, in its own process
with one thread, and takes the process's own CPU time. Prints the best of all rounds and the ratio new / old, and the
largest memory of the process. On a quiet machine ratios repeat within 1 to 2 %.

Runs in which the process gets new memory from the system are left out. Each of its pages (4 KiB) costs up to 10 us: a
step of "LIF in memory" took 9 ms without new pages and 85 ms with 8,700 of them, the size of one of its tensors, at
both commits. How many of the first steps need new pages depends on the holes in the heap that earlier cases left.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

NEW_PAGES = 64  # a run that gets more of them from the system is left out
MOST_RUNS = 50  # for a case that always gets new pages


def best(function: Callable[[], object], seconds: float) -> float:
    """The shortest run but for one in fifty, in milliseconds of CPU time."""
    function()
    times: list[float] = []
    settled: list[float] = []
    end = time.perf_counter() + seconds
    while (len(settled) < 3 and len(times) < MOST_RUNS) or time.perf_counter() < end:
        pages, start = resource.getrusage(resource.RUSAGE_SELF).ru_minflt, time.thread_time()
        function()
        times.append(time.thread_time() - start)
        if resource.getrusage(resource.RUSAGE_SELF).ru_minflt - pages <= NEW_PAGES:
            settled.append(times[-1])
    times = sorted(settled or times)
    return 1e3 * times[len(times) // 50]


def work(only: str, seconds: float) -> dict[str, float]:
    """Milliseconds by name, measured in this process; only public names, so that older checkouts run it too."""
    import torch
    from torch import nn

    import steadyspike as ss

    torch.set_num_threads(1)
    torch.manual_seed(0)
    ss.keep_freed_memory()
    cases: dict[str, tuple[nn.Module, torch.Tensor]] = {
        "fixed: LIF": (ss.LIF(), torch.randn(4, 1, 16)),
        "fixed: LIF, U[0], V and tau fixed": (ss.LIF(init="zero", learn=()), torch.randn(4, 1, 16)),
        "fixed: LIF with bits": (ss.LIF(), torch.randn(4, 1, 64, 16)),
        "fixed: LIF per channel with bits": (ss.LIF(channels=64), torch.randn(4, 1, 64, 16)),
        "kernel: LIF in the second cache": (ss.LIF(), torch.randn(4, 2, 64, 16, 16).add_(0.5)),
        "kernel: LIF in memory": (ss.LIF(), torch.randn(4, 128, 64, 16, 16).add_(0.5)),
    }
    for name, options, batch in (
        ("resnet19", {"image_size": 32, "width": 0.25}, 16),
        ("spikformer_cifar", {"image_size": 32, "width": 0.25}, 8),
        ("qkformer_cifar", {"image_size": 32}, 1),
        ("cnn7_tiny", {"image_size": 32}, 8),
    ):
        if only in f"network: {name}":
            net = ss.models.create(name, num_classes=10, **options).to(memory_format=torch.channels_last)
            x = torch.randn(batch, net.in_channels, 32, 32).contiguous(memory_format=torch.channels_last)
            cases[f"network: {name}"] = (net, x)
    actual = {}
    for name, (layer, x) in cases.items():
        if only not in name:
            continue
        leaf = x.requires_grad_(not name.startswith("network"))
        layer.train()
        actual[f"{name}, training"] = best(lambda layer=layer, x=leaf: layer(x).sum().backward(), seconds)  # type: ignore[misc]
        layer.eval()
        with torch.no_grad():
            actual[f"{name}, evaluation"] = best(lambda layer=layer, x=leaf: layer(x), seconds)  # type: ignore[misc]
    actual["memory of the process (MiB)"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return actual


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkouts", nargs="*", type=Path)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=0.5)
    parser.add_argument("--only", default="")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        print(json.dumps(work(args.only, args.seconds)))
        return
    results: list[dict[str, float]] = [{}, {}]
    for _ in range(args.rounds):
        for kept, checkout in zip(results, args.checkouts, strict=True):
            command = [sys.executable, __file__, "--worker", "--only", args.only, "--seconds", str(args.seconds)]
            environment = {**os.environ, "PYTHONPATH": str(checkout / "src"), "OMP_NUM_THREADS": "1"}
            done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
            for name, value in json.loads(done.stdout.splitlines()[-1]).items():
                kept[name] = min(value, kept.get(name, value))
    print(f"{'ms':52} {'old':>9} {'new':>9} {'new/old':>8}")
    for name, old in results[0].items():
        print(f"{name:52} {old:9.3f} {results[1][name]:9.3f} {results[1][name] / old:8.3f}")


if __name__ == "__main__":
    main()
