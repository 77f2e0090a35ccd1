"""Decides for a class from its scores, also if a diverged network gives NaN."""

from __future__ import annotations

import math

from torch import Tensor

NO_CLASS = -1


def decided(scores: Tensor) -> Tensor:
    """The class of the largest score, over the last axis: [..., K] -> [...]; `NO_CLASS` if it is NaN or infinite.

    ``argmax`` alone gives class 0 if all scores are NaN. This would count as right for every sample of class 0.
    """
    best = scores.max(-1)
    return best.indices.where(best.values.abs() < math.inf, NO_CLASS)  # isfinite is four operators on a CPU
