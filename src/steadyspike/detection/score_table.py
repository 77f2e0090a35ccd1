"""Prints mAP as a table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from steadyspike.detection.report_section import SIZES
from steadyspike.train.recipe.kinds import BOXES

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

_CLASSES = 10  # that `glance` shows


def map_table(test: dict[str, Any]) -> Table:
    """Returns the mAP of a result by class; every number has its metric."""
    from rich.table import Table

    table = Table("class", "mAP@.5 (COCO)", "mAP@.5:.95 (COCO)")
    for name, row in {"all": test, **test["classes"]}.items():
        table.add_row(name, BOXES.number(row["AP50"]), BOXES.number(row["AP"]), style="bold" if row is test else None)
    table.add_row(
        "all, as YOLO code prints it", BOXES.number(test["yolo_AP50"]), BOXES.number(test["yolo_AP"]), style="dim"
    )
    return table


def glance(test: dict[str, Any]) -> list[RenderableType]:
    """mAP by class, of the first classes, and by size of box, for `steadyspike show`."""
    from rich.table import Column, Table
    from rich.text import Text

    columns = (Column(name, justify="right", no_wrap=True) for name in ("mAP@.5", "mAP@.5:.95"))
    table = Table("", *columns, box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for name, row in {"all": test, **dict(list(test["classes"].items())[:_CLASSES])}.items():
        table.add_row(name, BOXES.number(row["AP50"]), BOXES.number(row["AP"]))
    sizes = ", ".join(f"{name} {BOXES.number(test.get(f'AP{letter}'))}" for name, letter in SIZES.items())
    more = len(test["classes"]) - _CLASSES
    rest = [Text(f"and {more} more classes: `steadyspike report` shows all", style="dim")] if more > 0 else []
    return [table, *rest, Text(f"mAP@.5:.95 by size of box: {sizes}", style="dim")]
