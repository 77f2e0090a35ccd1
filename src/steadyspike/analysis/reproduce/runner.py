"""Trains the runs that are not there yet, one after the other; stops and continues at any moment."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from steadyspike.analysis.reproduce.planned_run import Run
from steadyspike.analysis.reproduce.progress import Screen
from steadyspike.analysis.reproduce.store import Store, scores_of
from steadyspike.train.building.dry_run import check_recipe
from steadyspike.train.callbacks.display import duration
from steadyspike.train.files.folder import resumable
from steadyspike.train.run.training import train
from steadyspike.train.session.signals import Signals, Stopped


class Interrupted(Exception):
    """A signal stopped the work; ``number`` is the signal's. What was done so far is kept."""

    def __init__(self, number: int) -> None:
        super().__init__(f"stopped by signal {number}")
        self.number = number


def train_missing(
    runs: Sequence[Run], store: Store, data_dir: Path | None, console: Console, signals: Signals
) -> list[Run]:
    """Trains what is missing and returns these runs. An interrupted run continues where it was.

    All recipes are checked before the first one starts, so that a long list does not end at a wrong name.
    """
    todo = store.missing(runs)
    for run in todo:
        check_recipe(run.load())
    if not todo:
        return []
    known = len({run.key() for run in runs}) - len(todo)
    kept = f", {known} kept from before" if known else ""
    console.print(
        f"{len(todo)} {'run' if len(todo) == 1 else 'runs'} to train{kept}; results are in {store.root}",
        markup=False,
        soft_wrap=True,
    )
    screen = Screen(console, todo, known)
    try:
        for run in todo:
            _train(run, store, data_dir, screen, signals)
    except Stopped as stop:
        raise Interrupted(stop.number) from None
    finally:
        screen.close()
    return todo


def _train(run: Run, store: Store, data_dir: Path | None, screen: Screen, signals: Signals) -> None:
    folder, started = store.folder(run), time.monotonic()
    resume = (folder.root / "recipe.toml").exists()
    screen.start(run)
    with folder.locked():
        resumable(folder, run.load())  # a folder that was renamed is of another recipe: say so before its checkpoints
        result = train(run.load(), folder, data_dir=data_dir, resume=resume, display=screen.watch(run), signals=signals)
    if result["status"] == "interrupted":
        raise Interrupted(result["signal"])
    accuracy = ", ".join(f"{a:.4g}" for a in scores_of(result["test"]))
    what = "accuracy (%) after each step" if "accuracy" in result["test"] else "mAP at .5:.95 and at .5"
    took = duration(time.monotonic() - started)
    screen.end(run, f"{result['status']}, test {what} {accuracy} ({took})")
