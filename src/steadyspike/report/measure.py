"""What a run is measured by, and how such a number is written: its name goes with it everywhere."""

from __future__ import annotations

from typing import Any, NamedTuple


class Measure(NamedTuple):
    """name: as people say it; unit: "%" or nothing, for a share of one; digits: behind the point."""

    name: str
    unit: str
    digits: int

    @property
    def title(self) -> str:
        """For axes and heads of tables: ``"accuracy (%)"``, ``"mAP@.5"``."""
        return f"{self.name} ({self.unit})" if self.unit else self.name

    def number(self, value: float | None) -> str:
        """The number alone. COCO's -1 stands for a class or size of which there is no box."""
        if value is None:
            return "–"
        return f"{value:.{self.digits}f}" if value >= 0 else "no boxes"

    def text(self, value: float) -> str:
        """The number with its unit."""
        return f"{self.number(value)} {self.unit}".rstrip()

    def difference(self, value: float, other: float) -> str:
        """How much ``value`` is above ``other``."""
        return f"{value - other:+.{self.digits}f}"


ACCURACY = Measure("accuracy", "%", 2)
BOXES = Measure("mAP@.5", "", 3)  # COCO's AP50, as everywhere else in this library a share of one
SIZES = {"small": "s", "medium": "m", "large": "l"}  # size of box -> the letter behind COCO's AP and AR


def measure_named(column: str) -> Measure:
    """What a column of metrics.csv is measured by."""
    return BOXES if column.endswith("_AP50") else ACCURACY


def measure_of_result(test: dict[str, Any]) -> Measure:
    """What the test part of result.json is measured by."""
    return BOXES if "AP50" in test else ACCURACY


def test_scores(test: dict[str, Any]) -> list[float]:
    """What result.json says about the test part: accuracy in percent after 1, 2, ... steps, or mAP@.5 alone."""
    if "AP50" in test:
        return [float(test["AP50"])]
    return [float(value) for value in test.get("accuracy") or []]
