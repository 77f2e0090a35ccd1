"""mAP as a table on the screen."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table


def map_table(test: dict[str, Any]) -> Table:
    """The mAP of a result by class; every number with its metric."""
    from rich.table import Table

    table = Table("class", "mAP@.5 (COCO)", "mAP@.5:.95 (COCO)")
    for name, row in {"all": test, **test["classes"]}.items():
        table.add_row(name, _number(row["AP50"]), _number(row["AP"]), style="bold" if row is test else None)
    table.add_row("all, as YOLO code prints it", _number(test["yolo_AP50"]), _number(test["yolo_AP"]), style="dim")
    return table


def _number(value: float) -> str:
    return f"{value:.3f}" if value >= 0 else "no boxes"
