"""Trains missing runs one after the other; can be stopped and continued at any moment."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from steadyspike.paper.progress import Screen
from steadyspike.paper.work.planned_run import Run
from steadyspike.paper.work.store import Store, scores_of
from steadyspike.train.build.dry_run import check_recipe
from steadyspike.train.files.folder import DamagedRun, resumable
from steadyspike.train.run.display import duration
from steadyspike.train.run.training import train
from steadyspike.train.state.signals import Signals, Stopped


class Interrupted(Exception):
    """A signal stopped the work; ``number`` is its number. Finished work is kept."""

    def __init__(self, number: int) -> None:
        super().__init__(f"stopped by signal {number}")
        self.number = number


def train_missing(
    runs: Sequence[Run], store: Store, data_dir: Path | None, console: Console, signals: Signals
) -> list[Run]:
    """Trains what is missing and returns these runs.

    An interrupted run continues. A run that is damaged beyond repair is moved away and starts again, so that one bad
    file does not stop the whole table.

    All recipes are checked before the first run starts, so that a wrong name is reported at once.
    """
    todo = store.missing(runs)
    for run in todo:
        check_recipe(run.load())
    if not todo:
        return []
    finished = len({run.key() for run in runs}) - len(todo)
    kept = f", {finished} kept from before" if finished else ""
    console.print(
        f"{len(todo)} {'run' if len(todo) == 1 else 'runs'} to train{kept}; results are in {store.root}",
        markup=False,
        soft_wrap=True,
    )
    screen = Screen(console, todo, finished)
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
    screen.start(run)
    data_dir = data_dir or folder.data_dir()  # read before the run is moved away
    result = _continued(run, store, data_dir, screen, signals)
    if result is None:
        with folder.locked():
            result = train(run.load(), folder, data_dir=data_dir, display=screen.watch(run), signals=signals)
    if result["status"] == "interrupted":
        raise Interrupted(result["signal"])
    accuracy = ", ".join(f"{a:.4g}" for a in scores_of(result["test"]))
    what = "accuracy (%) after each step" if "accuracy" in result["test"] else "mAP at .5:.95 and at .5"
    took = duration(time.monotonic() - started)
    screen.end(run, f"{result['status']}, test {what} {accuracy} ({took})")


def _continued(
    run: Run, store: Store, data_dir: Path | None, screen: Screen, signals: Signals
) -> dict[str, Any] | None:
    """Trains the rest of a run; returns None if that is impossible and its folder was moved away."""
    folder, recipe = store.folder(run), run.load()
    resume = (folder.root / "recipe.toml").exists()
    with folder.locked():
        resumable(folder, recipe)  # a renamed folder belongs to another recipe: report that first
        try:
            return train(recipe, folder, data_dir=data_dir, resume=resume, display=screen.watch(run), signals=signals)
        except DamagedRun as damage:
            reason, aside = str(damage).partition("; ")[0], store.put_aside(folder)
    text = f"{run.label} is damaged beyond repair ({reason}) and starts again; the damaged run can be deleted: {aside}"
    screen.console.print(text, markup=False, soft_wrap=True)
    return None
