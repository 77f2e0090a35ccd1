"""`ScanSpec`: the settings of a LIF scan (gradient family, surrogate, reset, firing rule, input scaling).

A `ScanSpec` and the four tensors x, u0, v, a define the LIF scan completely. IF, LIF, PLIF, LTMD, DIET-SNN and the
readout are all this scan with different settings. The kernels receive the settings as `codes` and `constants`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from steadyspike.core.surrogate import Rect, Surrogate, kernel_code, resolve_surrogate, why_not_compiled

Family = Literal["as", "rs", "trsg"]
Detach = Literal["none", "spike", "product"]

FAMILIES: dict[str, int] = {"as": 0, "rs": 1, "trsg": 2}
RESETS: dict[str, int] = {"soft": 0, "hard": 1, "none": 2}
DETACHES: dict[str, int] = {"none": 0, "spike": 1, "product": 2}


def one_of(value: str, codes: dict[str, int], what: str) -> str:
    """Returns ``value`` if it is a known name; otherwise raises a ValueError that lists the known names."""
    if not isinstance(value, str) or value not in codes:
        raise ValueError(f"unknown {what} {value!r}; known: {', '.join(codes)}")
    return value


@dataclass(frozen=True)
class Reset:
    """How a spike changes the membrane (paper eq. 3), and whether gradients flow through this change.

    kind: ``"soft"``: U = M - V S; ``"hard"``: U = M (1 - S); ``"none"``: U = M (a neuron that never resets)
    detach: ``"none"`` (or False) keeps the whole gradient, the paper's setting;
        ``"spike"`` (or True) treats S as a constant: U = M - V sg(S), so V still gets -S (DIET-SNN); ``"product"``
        treats V*S as a constant: U = M - sg(V S), so V gets nothing (the paper's code with detach_reset). For a hard
        reset the last two are the same.
    """

    kind: str = "soft"
    detach: str | bool = "none"

    def __post_init__(self) -> None:
        one_of(self.kind, RESETS, "reset")
        if isinstance(self.detach, bool):
            object.__setattr__(self, "detach", "spike" if self.detach else "none")
        one_of(str(self.detach), DETACHES, "detach mode")


@dataclass(frozen=True)
class ScanSpec:
    """The settings of one LIF scan.

    family: decides the argument x of the surrogate. With ``"as"`` x = M - V; with ``"rs"`` x = M/V - 1; ``"trsg"`` is
        like "rs", with the output V*S instead of S (paper eqs. 5, 7, 10).
    strict: fire at M > V, as some published baselines do, instead of M >= V, the library's default
    decay_input: charge with a*I (paper eq. 1) or, if False, with I
    codes: (family, surrogate, reset, detach, strict, decay_input) for the kernels; a surrogate of -1 is not built in
    constants: (width, scale, temperature) of the surrogate for the kernels; 1 if they cannot compute it
    """

    family: str = "trsg"
    surrogate: Surrogate = field(default_factory=Rect)
    reset: Reset = field(default_factory=Reset)
    strict: bool = False
    decay_input: bool = True
    codes: tuple[int, ...] = field(init=False, repr=False, compare=False)
    constants: tuple[float, float, float] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        one_of(self.family, FAMILIES, "gradient family")
        for name in ("strict", "decay_input"):
            if not isinstance(getattr(self, name), bool):
                raise TypeError(f"{name} must be True or False, got {getattr(self, name)!r}")
        object.__setattr__(self, "surrogate", resolve_surrogate(self.surrogate))
        if not isinstance(self.reset, Reset):
            object.__setattr__(self, "reset", Reset(self.reset))
        numbers = (FAMILIES[self.family], kernel_code(self.surrogate), RESETS[self.reset.kind])
        codes = (*numbers, DETACHES[str(self.reset.detach)], int(self.strict), int(self.decay_input))
        object.__setattr__(self, "codes", codes)
        compiled = why_not_compiled(self.surrogate) is None
        object.__setattr__(self, "constants", self.surrogate.constants if compiled else (1.0, 1.0, 1.0))
