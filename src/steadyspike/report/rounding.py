"""Numbers short enough for a page."""

from __future__ import annotations

import math
from typing import Any


def rounded(value: Any) -> Any:
    """Five digits of every number, in lists and tables too; None for what is not finite."""
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    if isinstance(value, list):
        return [rounded(item) for item in value]
    if isinstance(value, float):
        return float(f"{value:.5g}") if math.isfinite(value) else None
    return value
