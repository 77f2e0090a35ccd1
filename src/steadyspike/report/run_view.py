"""One run in its present state: ended, stopped, killed or still training."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from steadyspike.report.run_columns import Columns, LayerHistory, read_columns, read_layers, read_rows
from steadyspike.train.files.folder import RunError, RunFolder
from steadyspike.train.recipe import Recipe
from steadyspike.train.recipe.kinds import Kind, Measure, kind_of
from steadyspike.train.recipe.load import ORIGIN

ORIGIN_DAMAGED = f"{ORIGIN} is damaged: the recipe is compared with the defaults, and is named after its folder"
RUNNING, STOPPED, KILLED = "running", "stopped", "killed"


class State(NamedTuple):
    """kind: running, stopped, killed, or how it ended (finished, diverged, silent, collapsed); text: a sentence."""

    kind: str
    text: str

    @property
    def ended(self) -> bool:
        return self.kind not in (RUNNING, STOPPED, KILLED)


class Score(NamedTuple):
    """value: in the unit of the run's measure
    part: of the data
    final: whether it is the score of the result, or of the best epoch so far
    """

    value: float
    part: str
    final: bool


@dataclass
class RunView:
    """The contents of a run's files."""

    root: Path
    label: str
    state: State
    recipe: Recipe
    about: dict[str, Any]  # run.json, empty before the run has written it
    result: dict[str, Any]  # result.json, empty for a run that has not ended
    origin: dict[str, Any] | None
    metrics: Columns
    steps: Columns
    layers: LayerHistory
    health: list[dict[str, str]]
    boxes: list[dict[str, str]]  # map.csv of a detection run
    details: dict[str, Any] | None = None  # details.json
    energy: dict[str, Any] | None = None  # energy.json
    notes: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)  # notes about damaged files that were ignored

    @property
    def name(self) -> str:
        """Returns the recipe's name with which it was trained, or otherwise the folder's name (runs/NAME/001)."""
        return str(self.origin["name"]) if self.origin else self.root.resolve().parent.name

    @property
    def epochs(self) -> list[int]:
        return [int(epoch or 0) for epoch in self.metrics.get("epoch", [])]

    @property
    def part(self) -> str | None:
        """Returns the part of the data that was evaluated after the epochs."""
        parts = (name.partition("_")[0] for name in self.kind.columns(self.metrics))
        return next((part for part in parts if part != "train"), None)

    @property
    def measure(self) -> Measure:
        """Returns the measure by which runs of this kind are compared."""
        return self.kind.measure

    @property
    def kind(self) -> Kind:
        """Returns the kind of run (what it learns)."""
        return kind_of(self.recipe)

    def curve(self) -> list[float | None]:
        """Returns the measure on the selection part after all time steps, epoch by epoch.

        Without a selection part it is the measure on the training part.
        """
        names = self.kind.columns(self.metrics)
        evaluated = [name for name in names if not name.startswith("train_")]
        return self.metrics.get((evaluated[-1:] or names or [""])[0], [])

    def evaluated(self) -> list[int]:
        """Returns the epochs (as indices) after which the selection part was evaluated.

        All epochs if there is no such part.
        """
        columns = [values for name, values in self.metrics.items() if self.part and name.startswith(f"{self.part}_")]
        every = range(len(self.epochs))
        return [i for i in every if any(column[i] is not None for column in columns)] if columns else list(every)

    def evaluated_curve(self) -> list[float | None]:
        """Returns `curve` without the epochs after which nothing was evaluated."""
        curve = self.curve()
        return [curve[i] for i in self.evaluated()] if curve else []

    def test_scores(self) -> list[float]:
        """Returns scores on the test part after 1, 2, ... time steps (boxes: one number).

        Empty for a run that has not ended.
        """
        return self.kind.test_scores(self.result.get("test", {}))

    def score(self) -> Score | None:
        """Returns the number by which runs are compared."""
        if scores := self.test_scores():
            return Score(scores[-1], "test", True)
        evaluated = [value for value in self.curve() if value is not None]
        return Score(max(evaluated), self.part or "train", False) if evaluated else None


def state_of(folder: RunFolder, result: dict[str, Any]) -> State:
    """Decides whether a run is training, or was stopped or killed."""
    status = str(result.get("status", ""))
    if status not in ("", "interrupted"):
        return State(status, str(result.get("message", "")) or "the run ended after its last epoch")
    if folder.in_use():
        return State(RUNNING, "the run is still training: this is what it has written so far")
    if status == "interrupted":
        where = result.get("where", "")
        return State(STOPPED, f"the run was stopped by a signal {where}; --resume continues it".replace("  ", " "))
    return State(KILLED, "the run has no result and no process is working on it: --resume continues it")


def read_run(root: Path, label: str | None = None) -> RunView:
    """Reads a run folder; raises RunError if it is not a run, or if a file of the run is damaged."""
    folder = RunFolder(root)
    recipe = folder.read_recipe()
    about, result = (folder.read_json(name) if (root / name).exists() else {} for name in ("run.json", "result.json"))
    extents = result.get("tables", {})

    def path(name: str) -> tuple[Path, Any]:
        return root / f"{name}.csv", extents.get(name)

    state = state_of(folder, result)
    warnings = [ORIGIN_DAMAGED] if (root / ORIGIN).exists() and not folder.intact(ORIGIN) else []
    return RunView(
        root=root,
        label=label or default_label(root),
        state=state,
        recipe=recipe,
        about=about,
        result=result if state.ended else {},
        origin=_optional(folder, ORIGIN),
        metrics=read_columns(*path("metrics")),
        steps=read_columns(*path("steps")),
        layers=read_layers(*path("layers")),
        health=read_rows(*path("health")),
        boxes=read_rows(*path("map")),
        details=_optional(folder, "details.json") if state.ended else None,
        energy=_optional(folder, "energy.json") if state.ended else None,
        warnings=warnings,
    )


# Files that only add to the page, with the keys that each needs; a file without one of these keys is ignored.
_OPTIONAL: dict[str, tuple[str, ...]] = {
    ORIGIN: ("name", "base", "changed"),
    "details.json": ("classes", "recall", "confusion", "confused", "pictures", "membranes", "samples"),
    "energy.json": ("acs", "macs", "energy"),
}


def _optional(folder: RunFolder, name: str) -> dict[str, Any] | None:
    """Reads a file that only adds to the page; it is ignored if it is missing, damaged or from another version."""
    content = folder.read_json(name) if folder.intact(name) else {}
    return content if all(key in content for key in _OPTIONAL[name]) else None


def default_label(root: Path) -> str:
    """Returns ``"demo/001"`` for ``runs/demo/001``."""
    return "/".join(root.resolve().parts[-2:]).lstrip("/")


def read_runs(roots: Sequence[Path]) -> list[RunView]:
    """Reads several runs, each once, with distinct labels."""
    unique = list({root.resolve(): root for root in roots}.items())
    labels = _labels([resolved for resolved, _ in unique])
    return [read_run(root, label) for (_, root), label in zip(unique, labels)]


def _labels(paths: list[Path]) -> list[str]:
    """Returns the shortest ends of paths, of two names or more, that differ from each other."""
    for length in range(2, max(len(path.parts) for path in paths) + 1):
        labels = [os.sep.join(path.parts[-length:]).lstrip(os.sep) for path in paths]
        if len(set(labels)) == len(labels):
            return labels
    raise RunError("the same run is named twice")
