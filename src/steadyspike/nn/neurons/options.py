"""The scan options that every neuron takes by keyword, over the defaults of the paper that published it."""

from __future__ import annotations

from typing import TypedDict

from steadyspike.core.spec import Reset, ScanSpec
from steadyspike.core.surrogate import Surrogate, resolve_surrogate


class ScanOptions(TypedDict, total=False):
    """gradient, surrogate, reset, strict, decay_input as in `LIF`; backend: which kernel runs the scan."""

    gradient: str
    surrogate: str | Surrogate
    reset: str | Reset
    strict: bool
    decay_input: bool
    backend: str


def over(published: ScanOptions, given: ScanOptions) -> ScanOptions:
    """The published options with those that the user gave in their place; an unknown name is an error."""
    for name in given:
        if name not in ScanOptions.__annotations__:
            raise TypeError(f"unknown neuron option {name!r}; known: {', '.join(ScanOptions.__annotations__)}")
    merged: ScanOptions = {**published, **given}
    return merged


def as_spec(options: ScanOptions) -> ScanSpec:
    """The `ScanSpec` of some options; what they leave out is the library's default (TrSG, rect, soft, >=, a*I)."""
    reset = options.get("reset", "soft")
    return ScanSpec(
        options.get("gradient", "trsg"),
        resolve_surrogate(options.get("surrogate", "rect")),
        reset if isinstance(reset, Reset) else Reset(reset),
        options.get("strict", False),
        options.get("decay_input", True),
    )
