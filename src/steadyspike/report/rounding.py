"""Rounding of numbers, so that a page is small."""

from __future__ import annotations

import math
from typing import Any


def rounded(value: Any) -> Any:
    """Rounds every number to five digits, in lists and tables too; non-finite numbers become None."""
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    if isinstance(value, list):
        return [rounded(item) for item in value]
    if isinstance(value, float):
        return float(f"{value:.5g}") if math.isfinite(value) else None
    return value
