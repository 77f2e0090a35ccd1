"""Checks whole numbers that users give: counts of steps, channels, classes, blocks."""

from __future__ import annotations

from numbers import Integral


def whole_number(value: object, name: str) -> int:
    """Returns ``value`` as an int; raises ValueError if it is not a whole number above 0.

    Accepts numpy's integers too.
    """
    if isinstance(value, bool) or not isinstance(value, Integral) or value < 1:
        raise ValueError(f"{name} must be a whole number above 0, got {value!r}")
    return int(value)
