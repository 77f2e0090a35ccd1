"""The keyword options of the scan, which every neuron takes; they override the neuron's published settings."""

from __future__ import annotations

from typing import TypedDict

from steadyspike.core.spec import Reset, ScanSpec
from steadyspike.core.surrogate import Surrogate, resolve_surrogate
from steadyspike.core.unpack import Unpack as Unpack


class ScanOptions(TypedDict, total=False):
    """gradient, surrogate, reset, strict, decay_input: as in `LIF` backend: which kernel runs the scan"""

    gradient: str
    surrogate: str | Surrogate
    reset: str | Reset
    strict: bool
    decay_input: bool
    backend: str


def over(published: ScanOptions, given: ScanOptions) -> ScanOptions:
    """Returns the published options, overridden by those that the user gave; an unknown name raises TypeError."""
    for name in given:
        if name not in ScanOptions.__annotations__:
            raise TypeError(f"unknown neuron option {name!r}; known: {', '.join(ScanOptions.__annotations__)}")
    merged: ScanOptions = {**published, **given}
    return merged


def as_spec(options: ScanOptions) -> ScanSpec:
    """Returns the `ScanSpec` of the options; missing ones have the library's defaults (TrSG, rect, soft, >=, a*I)."""
    reset = options.get("reset", "soft")
    return ScanSpec(
        options.get("gradient", "trsg"),
        resolve_surrogate(options.get("surrogate", "rect")),
        reset if isinstance(reset, Reset) else Reset(reset),
        options.get("strict", False),
        options.get("decay_input", True),
    )


def check_retention(retention: float, options: ScanOptions) -> float:
    """Returns ``retention`` as a float; raises ValueError if the neuron would keep nothing of U or of its input."""
    if not 0 < retention <= 1:
        raise ValueError(f"retention is the share of U that is kept and must be in (0, 1]; got {retention}")
    if options.get("decay_input") and retention == 1:
        raise ValueError("decay_input=True scales the input by 1 - retention, which is 0; use retention below 1")
    return float(retention)
