"""Numbers of several seeds as mean, variance and number of seeds: formatting and comparison."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

NOT_MEASURED = "not measured yet"


class Summary(NamedTuple):
    """Summarises the values of several seeds; the variance is that of a sample, 0 for one seed."""

    mean: float
    variance: float
    seeds: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Summary | None:
        """Returns None if there are no values."""
        if not values:
            return None
        return cls(statistics.mean(values), statistics.variance(values) if len(values) > 1 else 0.0, len(values))

    def written(self, digits: int = 2) -> str:
        """``"76.09 ± 0.04 (3 seeds)"``."""
        if self.seeds == 1:
            return f"{self.mean:.{digits}f} (1 seed)"
        return f"{self.mean:.{digits}f} ± {math.sqrt(self.variance):.{digits}f} ({self.seeds} seeds)"


def judged(better: Summary | None, worse: Summary | None) -> str:
    """Judges whether ``better`` is above ``worse``, by the standard error of the difference of means."""
    if better is None or worse is None:
        return NOT_MEASURED
    difference = better.mean - worse.mean
    shown = f"{difference:+.2f}"
    word = "held" if difference > 0 else "did not hold" if difference < 0 else "did not hold: equal"
    if min(better.seeds, worse.seeds) < 2:
        return f"{word} ({shown}, one seed: no spread known)"
    error = math.sqrt(better.variance / better.seeds + worse.variance / worse.seeds)
    inside = abs(difference) <= 2 * error
    return f"{word} ({shown}{', within two standard errors' if inside else ''})"
