"""Draws a curve in one line of text."""

from __future__ import annotations

from collections.abc import Sequence

BLOCKS = "▁▂▃▄▅▆▇█"
PLAIN = "_.-:=+*#"  # for terminals without the blocks


def sparkline(
    values: Sequence[float | None],
    width: int = 20,
    low: float | None = None,
    high: float | None = None,
    marks: str = BLOCKS,
) -> str:
    """Returns at most ``width`` characters; several values under one character give their mean, none gives a space.

    low, high: the range, for curves that are compared; by default that of the values
    """
    columns = _shortened(values, width)
    values_there = [value for value in columns if value is not None]
    if not values_there:
        return ""
    low, high = min(values_there) if low is None else low, max(values_there) if high is None else high
    span = (high - low) or 1.0
    last = len(marks) - 1
    return "".join(
        " " if value is None else marks[min(last, max(0, round(last * (value - low) / span)))] for value in columns
    )


def _shortened(values: Sequence[float | None], width: int) -> list[float | None]:
    count = min(width, len(values))
    means: list[float | None] = []
    for i in range(count):
        piece = values[i * len(values) // count : (i + 1) * len(values) // count]
        values_there = [value for value in piece if value is not None]
        means.append(sum(values_there) / len(values_there) if values_there else None)
    return means
