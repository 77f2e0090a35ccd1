"""How quick the report and the lists of runs are: run folders made by hand, read and shown for real.

    python benchmarks/report_page.py [--runs 2000] [--epochs 200] [--layers 40]

Prints how long a large report takes to write and to open in Chromium, how long `steadyspike runs` needs for many runs,
and what one update of report.html costs while a run trains (it may take 1 % of the time).
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.report.browser import Browser, program
from tests.report.made import made_run

from steadyspike.report.live import LiveReport
from steadyspike.report.run_list import list_runs
from steadyspike.report.run_view import read_run
from steadyspike.report.write_page import write_report


def large_report(root: Path, epochs: int, layers: int) -> None:
    """One run of many epochs and layers: written, then opened and drawn."""
    folder = made_run(root / "large", epochs=epochs, layers=layers, steps=4)
    start = time.perf_counter()
    path = write_report([read_run(folder.root)], root / "large.html")
    wrote = time.perf_counter() - start
    print(f"report of {epochs} epochs x {layers} layers: {path.stat().st_size / 1e6:.2f} MB, written in {wrote:.2f} s")
    if program() is None:
        print("not opened: there is no Chromium on this machine")
        return
    browser = Browser(root / "profile")
    try:
        browser.screen(1200)
        for _ in range(3):
            start = time.perf_counter()
            browser.open(path)
            browser.run("new Promise(done => requestAnimationFrame(() => setTimeout(done, 0)))")
            print(f"  opened and drawn in Chromium in {time.perf_counter() - start:.2f} s")
    finally:
        browser.close()


def many_runs(root: Path, count: int) -> None:
    """The list of many runs, half of them ended."""
    for number in range(count):
        made_run(root / "runs" / f"recipe-{number % 20}" / f"{number:04d}", ended=number % 2 == 0)
    for turn in ("first", "second"):
        start = time.perf_counter()
        actual = list_runs(root / "runs")
        print(f"list of {len(actual)} runs, {turn} time: {time.perf_counter() - start:.2f} s")


def live(root: Path, epochs: int, layers: int) -> None:
    """What one update of report.html costs, and how often the rule of 1 % then lets it happen."""
    folder = made_run(root / "live", epochs=epochs, layers=layers, steps=4, ended=False)
    write = LiveReport(folder.root)
    write()
    start = time.perf_counter()
    write()
    cost = time.perf_counter() - start
    print(f"one update while training, after {epochs} epochs of {layers} layers: {cost:.2f} s")
    print(f"  within 1 % of the time it comes every {100 * cost:.0f} s at most")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=2000)
    parser.add_argument("--epochs", type=int, default=200)
    parser.add_argument("--layers", type=int, default=40)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as location:
        root = Path(location)
        large_report(root, options.epochs, options.layers)
        live(root, options.epochs, options.layers)
        many_runs(root, options.runs)


if __name__ == "__main__":
    main()
