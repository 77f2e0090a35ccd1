"""`python -m torture`: all kinds of faults, or those that are named; exits with 1 if one of them got through.

--scale 1 is the full test, an estimated ten minutes on two idle cores; --seed draws other faults.
"""

from __future__ import annotations

import argparse
import importlib
import os
import time
from collections.abc import Callable

from torture.tally import Tally, table

# name: module with a function ``torture(scale, seed) -> list[Tally]``
KINDS: dict[str, str] = {
    "run-files": "torture.run_files",
    "damaged-runs": "torture.damaged_runs",
    "kills": "torture.kills",
    "full-disk": "torture.full_disk",
    "ranks": "torture.killed_ranks",
    "readers": "torture.readers",
    "archives": "torture.archives",
    "deploy": "torture.deploy_readers",
}
Runner = Callable[[float, int], list[Tally]]


def runner(name: str) -> Runner:
    """``torture(scale, seed)`` of a kind's module."""
    actual: Runner = importlib.import_module(KINDS[name]).torture
    return actual


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m torture", description=__doc__)
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=f"one of {', '.join(KINDS)}; default: all")
    parser.add_argument("--seed", type=int, default=None, help="default: a new one, printed")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the full number of tries")
    options = parser.parse_args()
    if unknown := set(options.kinds) - set(KINDS):
        parser.error(f"there is no kind {sorted(unknown)[0]}")
    seed = int.from_bytes(os.urandom(3), "big") if options.seed is None else options.seed
    print(f"seed {seed}, scale {options.scale:g}", flush=True)
    tallies: list[Tally] = []
    for name in options.kinds or KINDS:
        started = time.monotonic()
        actual = runner(name)(options.scale, seed)
        print(f"{name}: {time.monotonic() - started:.0f} s", flush=True)
        tallies += actual
    print("\n" + table(tallies))
    failures = [failure for tally in tallies for failure in tally.failures]
    for failure in failures[:50]:
        print(failure)
    if failures:
        print(f"{len(failures)} failures; the same faults again: python -m torture --seed {seed}")
    return 1 if failures else 0


if __name__ == "__main__":
    raise SystemExit(main())
