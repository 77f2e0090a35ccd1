"""Kinds of runs: what a recipe's network learns, and where its task, its pictures and its part of a report are.

`KINDS` is the registry. A new kind is one folder: a `Task` (train.build.task) and, if its data and networks are new,
their entries in the registries of data sets and networks. Code that handles runs calls `kind_of(recipe)`, so that it
does not depend on the kinds that exist. Locations are written "module:name" and imported when they are needed, because
commands that must start quickly read this file.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import import_module
from typing import Any, NamedTuple

from steadyspike.train.recipe.schema import Recipe


class Measure(NamedTuple):
    """How a score is printed.

    unit: "%", or "" for a number from 0 to 1
    digits: those after the decimal point
    """

    name: str
    unit: str
    digits: int

    @property
    def title(self) -> str:
        """The name for axes and heads of tables: ``"accuracy (%)"``, ``"mAP@.5"``."""
        return f"{self.name} ({self.unit})" if self.unit else self.name

    def number(self, value: float | None) -> str:
        """Formats only the number. COCO uses -1 for a class or size without boxes."""
        if value is None:
            return "–"
        return f"{value:.{self.digits}f}" if value >= 0 or self is not BOXES else "no boxes"

    def text(self, value: float) -> str:
        """Formats the number with its unit."""
        return f"{self.number(value)} {self.unit}".rstrip()

    def difference(self, value: float, other: float) -> str:
        """Formats how much ``value`` is above ``other``."""
        return f"{value - other:+.{self.digits}f}"


ACCURACY = Measure("accuracy", "%", 2)
BOXES = Measure("mAP@.5", "", 3)  # COCO's AP50, written as a share of one as everywhere in this library


@dataclass(frozen=True, eq=False)
class Kind:
    """What a run learns.

    name: of the kind, also in the registries of data sets and networks
    finds: what its networks find, for messages
    belongs: whether a recipe belongs to this kind
    task: the location of its `Task` class
    measure: describes the number by which runs are compared
    key: its key in the test part of result.json; in the columns of metrics.csv it follows the part's name
    record: unit and digits of this number in recorded results
    others: returns the other numbers of the test part that are recorded
    form: the type of the number under ``key``; if it is a dict of types, that of the whole test part
    breakdown: returns the numbers of the test part that a figure compares (classes of boxes); None: those after each
        time step
    classifies: whether the network returns scores of classes after every time step; only then do early exit, folding,
        a confusion table and the accuracy of a constant guess have a meaning
    needs: what belongs to the kind, for recipes that lack it
    section, cards, curves: locations of functions for the report; "" for none (also in the next four)
    predict: the location of the function for `steadyspike predict`
    scores: the location of the function for a table of scores on the screen
    glance: the location of the function for `steadyspike show`
    sheet: the location of the function for the samples of `steadyspike data show`
    smallest: a run of some minutes that replaces this kind at mini scale
    """

    name: str
    finds: str
    belongs: Callable[[Recipe], bool]
    task: str
    measure: Measure
    key: str
    record: tuple[str, int]
    others: Callable[[dict[str, Any]], dict[str, float]] = lambda test: {}
    form: Any = float
    breakdown: Callable[[dict[str, Any]], dict[str, float]] | None = None
    classifies: bool = False
    needs: str = ""
    section: str = ""
    cards: str = ""
    curves: str = ""
    predict: str = ""
    scores: str = ""
    glance: str = ""
    sheet: str = "steadyspike.data.show:show"
    smallest: str = ""

    def test_scores(self, test: dict[str, Any]) -> list[float]:
        """Returns the numbers of the test part: after 1, 2, ... time steps, or one."""
        value = test.get(self.key)
        return [float(one) for one in (value if isinstance(value, list) else [value]) if one is not None]

    def columns(self, names: Iterable[str]) -> list[str]:
        """Returns the columns of metrics.csv with the measure; those of a part that was evaluated come first."""
        own = [name for name in names if re.fullmatch(rf"[a-z]+_{re.escape(self.key)}(_\d+)?", name)]
        return sorted(own, key=lambda name: name.startswith("train_"))


def imported(text: str) -> Any:
    """Imports what is at "module:name"."""
    module, _, name = text.partition(":")
    return getattr(import_module(module), name)


def _fewer_steps(test: dict[str, Any]) -> dict[str, float]:
    return {f"after step {step}": round(value, 2) for step, value in enumerate(test["accuracy"][:-1], 1)}


def _of_boxes(test: dict[str, Any]) -> dict[str, float]:
    names = {"AP": "AP", "yolo_AP50": "YOLO AP50", "yolo_AP": "YOLO AP"}
    numbers = {text: round(test[key], 4) for key, text in names.items() if key in test}
    return numbers | {f"AP50 of {name}": round(row["AP50"], 4) for name, row in test.get("classes", {}).items()}


def _by_class(test: dict[str, Any]) -> dict[str, float]:
    return {"all": test["AP50"], **{name: row["AP50"] for name, row in test["classes"].items()}}


CLASSIFICATION = Kind(
    "classification", "classes", lambda recipe: True, "steadyspike.train.build.task:Task", ACCURACY, "accuracy",
    ("% accuracy", 2), _fewer_steps, list[float], classifies=True,
)  # fmt: skip
KINDS: dict[str, Kind] = {
    "detection": Kind(
        "detection", "boxes", lambda recipe: recipe.detection is not None, "steadyspike.detection.task:DetectionTask",
        BOXES, "AP50", ("COCO mAP@.5", 4), _of_boxes,
        {"AP": float, "AP50": float, "classes": dict[str, dict[str, float]]}, _by_class, needs="a [detection] table",
        section="steadyspike.detection.report_section:section", cards="steadyspike.detection.report_section:cards",
        curves="steadyspike.detection.report_section:class_curves",
        predict="steadyspike.detection.predict_files:predict_boxes",
        scores="steadyspike.detection.score_table:map_table", glance="steadyspike.detection.score_table:glance",
        sheet="steadyspike.detection.drawing:write_sheet", smallest="detect-demo",
    ),
    "classification": CLASSIFICATION,  # the last one: every recipe that belongs to no other kind
}  # fmt: skip


def register(kind: Kind) -> None:
    """Adds a kind, which is tried before the existing ones; raises ValueError if the name exists."""
    if kind.name in KINDS:
        raise ValueError(f"a kind named {kind.name!r} exists already; register it under another name")
    before = dict(KINDS)
    KINDS.clear()
    KINDS.update({kind.name: kind, **before})


def kind_named(name: str) -> Kind:
    """Returns the kind for which a data set or network is registered.

    Raises ValueError if there is none of this name.
    """
    if name not in KINDS:
        raise ValueError(f"unknown kind of run {name!r}; known: {', '.join(KINDS)}")
    return KINDS[name]


def kind_of(recipe: Recipe) -> Kind:
    """Returns what a recipe's network learns."""
    return next(kind for kind in KINDS.values() if kind.belongs(recipe))


def kind_of_result(test: dict[str, Any]) -> Kind:
    """Returns the kind whose number is in the test part of a result; classification if there is none."""
    return next((kind for kind in KINDS.values() if kind.key in test), CLASSIFICATION)


def kind_of_columns(names: Iterable[str]) -> Kind:
    """Returns the kind whose number is in the columns of metrics.csv; classification if there is none."""
    names = list(names)
    return next((kind for kind in KINDS.values() if kind.columns(names)), CLASSIFICATION)
