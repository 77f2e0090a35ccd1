"""How long commands take from start to end: `python -m benchmarks.startup` prints a table.

Each command runs in new processes. CPU is user and system time, which a busy machine changes less than wall time; both
are the least of ``--tries``.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.machine import describe

_START = "from steadyspike_command import main; main()"
COMMANDS = ("--help", "recipes", "recipes demo", "train tiny --out RUN", "runs ROOT", "show RUN")


def seconds(arguments: list[str]) -> tuple[float, float]:
    """(CPU, wall) seconds of one Python process; RuntimeError if it fails."""
    before, start = os.times(), time.perf_counter()
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True)
    wall, after = time.perf_counter() - start, os.times()
    if done.returncode:
        raise RuntimeError(f"{' '.join(arguments)}: exit code {done.returncode}: {done.stderr[-500:]}")
    used = after.children_user + after.children_system - before.children_user - before.children_system
    return used, wall


def measured(command: str, tries: int, root: Path) -> tuple[float, float]:
    """The least (CPU, wall) seconds of a command; ``train`` makes a new folder every time, the others read the last."""
    results = []
    for number in range(tries):
        new = command.startswith("train")
        run = root / f"run{number if new else tries - 1}"
        text = command.replace("RUN", str(run)).replace("ROOT", str(root))
        results.append(seconds(["-c", _START, *text.split()]))
    return min(cpu for cpu, _ in results), min(wall for _, wall in results)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tries", type=int, default=3)
    tries = parser.parse_args().tries
    machine = describe(1)
    facts = ", ".join(str(machine[key]) for key in ("cpu", "time")) + f", commit {machine['commit']}"
    print(
        f"{facts}, load {machine['load']} on {machine['cores']} cores",
        "\n\n| command | CPU | wall |\n|---|---|---|",
        sep="",
    )
    for name, code in (("`import torch`", "import torch"), ("`import torch._dynamo`", "import torch._dynamo")):
        cpu, wall = map(min, zip(*(seconds(["-c", code]) for _ in range(tries))))
        print(f"| {name} | {cpu:.2f} s | {wall:.2f} s |", flush=True)
    with tempfile.TemporaryDirectory() as root:
        for command in COMMANDS:
            cpu, wall = measured(command, tries, Path(root))
            print(f"| `steadyspike {command}` | {cpu:.2f} s | {wall:.2f} s |", flush=True)


if __name__ == "__main__":
    main()
