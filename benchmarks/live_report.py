"""What `train.report = true` costs while a run trains: the share of the time that updates of report.html take.

    python benchmarks/live_report.py [RECIPE] [--seconds 60] [--set KEY=VALUE]

Trains a recipe for about so many seconds with the report on, and times the callback that writes it, in the same run and
by the same clock as the training. The last report, after the last epoch, is not counted: no step waits for it.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

from steadyspike.report.live import PAGE, LiveReport
from steadyspike.train.files.folder import RunFolder
from steadyspike.train.recipe import load_recipe
from steadyspike.train.run.training import SHARE, train


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe", nargs="?", default="tiny")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--set", action="append", default=[], dest="settings")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as location:
        epochs = _epochs(options.recipe, options.settings, options.seconds, Path(location) / "short")
        folder, updates = RunFolder(Path(location) / "run"), list[float]()
        write = LiveReport(folder.root)

        def look() -> None:
            start = time.perf_counter()
            write()
            updates.append(time.perf_counter() - start)

        recipe = load_recipe(options.recipe, [*options.settings, f"schedule.epochs={epochs}"])
        with folder.locked():
            start = time.perf_counter()
            train(recipe, folder, after_epoch=look)
            whole = time.perf_counter() - start
        size = (folder.root / PAGE).stat().st_size / 1e6 if updates else 0.0
        print(f"{options.recipe}: {epochs} epochs in {whole:.1f} s, {len(updates)} updates of {size:.2f} MB")
        print(f"  one update: {', '.join(f'{1e3 * cost:.0f}' for cost in updates[:8])} ms")
        print(f"  share of the training time: {sum(updates) / whole:.2%} (allowed: {SHARE:.0%})")


def _epochs(name: str, settings: list[str], seconds: float, root: Path) -> int:
    """So many epochs that a run takes about ``seconds``."""
    folder = RunFolder(root)
    with folder.locked():
        start = time.perf_counter()
        train(load_recipe(name, [*settings, "schedule.epochs=2"]), folder)
    return max(2, round(2 * seconds / (time.perf_counter() - start)))


if __name__ == "__main__":
    main()
