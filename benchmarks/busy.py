"""A training step on a machine whose cores are busy: this library's operators against torch's own, wall and CPU time.

    python -m benchmarks.busy [--burners 2] [--seconds 4]

Threads of a parallel region wait for each other at its end. On free cores they spin, which is the fastest way; on busy
cores a thread may spin while the one it waits for has no core. Both torch's and this library's regions run on the same
OpenMP runtime (one pool of threads in the process), so that its wait policy (OMP_WAIT_POLICY) is that of both. The
table shows what a step costs with 1 and 2 threads, free and with ``--burners`` processes that compute all the time.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from benchmarks.machine import describe
from torch import Tensor, nn

import steadyspike as ss
from steadyspike.nn.time import Folded

T, B, C, SIZE, LAYERS = 4, 8, 64, 16, 6


class Relu(nn.Module):
    """torch's own operators: convolution and ReLU, on the same tensors as the spiking network."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x)


def network(kind: str) -> nn.Module:
    """Convolutions with ReLU ("torch"), with LIF ("scan"), or by events with LIF ("ours")."""
    layers: list[nn.Module] = []
    for _ in range(LAYERS):
        conv = nn.Conv2d(C, C, 3, padding=1, bias=False)
        nn.init.normal_(conv.weight, std=3.0 / (9 * C) ** 0.5)
        layers += [Folded(conv), Relu() if kind == "torch" else ss.LIF()]
    model = nn.Sequential(*layers)
    return ss.use_events(model) if kind == "ours" else model


def step_of(kind: str) -> Callable[[], None]:
    torch.manual_seed(0)
    model, x = network(kind), torch.rand(T, B, C, SIZE, SIZE)

    def step() -> None:
        model.zero_grad(set_to_none=True)
        model(x).sum().backward()

    return step


def measure(kind: str, threads: int, seconds: float) -> tuple[float, float]:
    """(wall, CPU) milliseconds of a step: means over ``seconds``, since the load comes and goes."""
    torch.set_num_threads(threads)
    step = step_of(kind)
    for _ in range(3):
        step()
    wall, cpu, steps = time.perf_counter(), time.process_time(), 0
    while time.perf_counter() - wall < seconds:
        step()
        steps += 1
    return 1e3 * (time.perf_counter() - wall) / steps, 1e3 * (time.process_time() - cpu) / steps


def _burn() -> None:
    while True:
        pass


@contextmanager
def burning(count: int) -> Iterator[None]:
    """``count`` processes that take a core each, for as long as it lasts."""
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=_burn, daemon=True) for _ in range(count)]
    for process in processes:
        process.start()
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.join()


def table(burners: int, seconds: float) -> Iterator[str]:
    """One row per network, thread count and wait policy; a policy is read once, when a process starts."""
    yield f"| network | threads | wait policy | free: wall, CPU (ms) | {burners} busy processes: wall, CPU (ms) |"
    yield "|---|---|---|---|---|"
    for kind in ("torch", "scan", "ours"):
        for threads, policy in ((1, "default"), (2, "default"), (2, "passive")):
            cells = []
            for busy in (0, burners):
                environment = {**os.environ, **({} if policy == "default" else {"OMP_WAIT_POLICY": policy})}
                environment.pop("OMP_NUM_THREADS", None)
                command = [
                    sys.executable,
                    "-m",
                    "benchmarks.busy",
                    "--one",
                    kind,
                    str(threads),
                    "--seconds",
                    str(seconds),
                ]
                with burning(busy):
                    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
                wall, cpu = map(float, done.stdout.split()[-2:])
                cells.append(f"{wall:.0f}, {cpu:.0f}")
            yield f"| {kind} | {threads} | {policy} | {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--burners", type=int, default=os.cpu_count() or 2)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--one", nargs=2, metavar=("NETWORK", "THREADS"), help="measure one row in this process")
    options = parser.parse_args()
    if options.one:
        print(*measure(options.one[0], int(options.one[1]), options.seconds))
        return
    print(json.dumps(describe(2)))
    for line in table(options.burners, options.seconds):
        print(line, flush=True)


if __name__ == "__main__":
    main()
