"""Surrogate derivatives f'(x) of the Heaviside step (paper section 5.1 and supplement).

Each surrogate is a frozen dataclass with a few fields, the derivative used in the backward pass, and the smooth
function that has this derivative (for the finite-difference tests). The compiled kernels repeat the formulas, once in
C++ and once in Triton; tests compare them for every entry of `SURROGATES`. To add your own surrogate, write a subclass
with a ``derivative``; it runs on the PyTorch reference (docs/extending.md).

A ``scale`` multiplies the derivative (BNTT and DIET-SNN use 0.3 of a triangle); it is 1 in the paper.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from numbers import Real
from typing import ClassVar

import torch
from torch import Tensor


@dataclass(frozen=True)
class Surrogate:
    """Base class of all surrogates. ``x`` has any shape: M - V for the family "as", M/V - 1 for "rs" and "trsg"."""

    name: ClassVar[str]
    bounded: ClassVar[bool] = False  # True if the derivative is 0 beyond some distance

    def __post_init__(self) -> None:
        for f in fields(self):
            value = getattr(self, f.name)
            if isinstance(value, Tensor):
                continue  # a constant that changes during training; only the reference scan accepts it
            if not (isinstance(value, Real) and 0 < float(value) < math.inf):
                raise ValueError(f"{type(self).__name__}.{f.name} must be a finite number above 0, got {value!r}")

    def derivative(self, x: Tensor) -> Tensor:
        """f'(x), elementwise."""
        raise NotImplementedError

    def primitive(self, x: Tensor) -> Tensor:
        """Returns a smooth step f with f' = `derivative`; it rises from about 0 to about ``scale``."""
        raise NotImplementedError

    @property
    def constants(self) -> tuple[float, float, float]:
        """Returns (width, scale, temperature) for the kernels; 1 for a field that the surrogate does not have."""
        return (
            float(getattr(self, "width", getattr(self, "steepness", 1.0))),
            float(getattr(self, "scale", 1.0)),
            float(getattr(self, "temperature", 1.0)),
        )


@dataclass(frozen=True)
class Rect(Surrogate):
    """Rectangle: 1/w on the open window abs(x) < w/2. The paper uses w = 1."""

    name: ClassVar[str] = "rect"
    bounded: ClassVar[bool] = True
    width: float = 1.0
    scale: float = 1.0

    def derivative(self, x: Tensor) -> Tensor:
        return (x.abs() < self.width / 2).to(x.dtype) * (self.scale / self.width)

    def primitive(self, x: Tensor) -> Tensor:
        return self.scale * (x / self.width + 0.5).clamp(0, 1)


@dataclass(frozen=True)
class Triangle(Surrogate):
    """Triangle: max(0, w - abs(x)) / w**2."""

    name: ClassVar[str] = "triangle"
    bounded: ClassVar[bool] = True
    width: float = 1.0
    scale: float = 1.0

    def derivative(self, x: Tensor) -> Tensor:
        return (self.width - x.abs()).clamp_min(0) * (self.scale / self.width**2)

    def primitive(self, x: Tensor) -> Tensor:
        z = (x / self.width).clamp(-1, 1)
        return self.scale * (0.5 + z - 0.5 * z * z.abs())


@dataclass(frozen=True)
class ArcTan(Surrogate):
    """Derivative of an arctangent: g / (2 (1 + (pi/2 g x)^2)).

    g is a steepness: a larger g is narrower (PLIF uses 2).
    """

    name: ClassVar[str] = "arctan"
    steepness: float = 2.0
    scale: float = 1.0

    def derivative(self, x: Tensor) -> Tensor:
        z = (math.pi / 2 * self.steepness) * x
        return (self.scale * self.steepness / 2) / (1 + z * z)

    def primitive(self, x: Tensor) -> Tensor:
        return self.scale * (torch.atan(math.pi / 2 * self.steepness * x) / math.pi + 0.5)


@dataclass(frozen=True)
class Sigmoid(Surrogate):
    """Derivative of a sigmoid: s (1 - s) / w with s = sigmoid(x / w). SpikingJelly's Sigmoid(alpha=4) is w = 0.25."""

    name: ClassVar[str] = "sigmoid"
    width: float = 1.0
    scale: float = 1.0

    def derivative(self, x: Tensor) -> Tensor:
        # The exp of non-positive numbers only, so that large arguments give 0 instead of inf * 0.
        e = torch.exp(-(x / self.width).abs())
        return (self.scale / self.width) * e / ((1 + e) * (1 + e))

    def primitive(self, x: Tensor) -> Tensor:
        return self.scale * torch.sigmoid(x / self.width)


@dataclass(frozen=True)
class DSpike(Surrogate):
    """Dspike (Li et al., 2021): b / (2 tanh(b/2) cosh^2(b x/w)) / w on the closed window abs(x) <= w/2.

    The authors' window is [0, 1] in u/V, with the firing threshold at 1/2. Here x = M/V - 1 and V is the firing
    threshold, so their window is w = 2. The default w = 1 is the window of the paper's rectangle, which Dspike
    approaches as b -> 0.
    """

    name: ClassVar[str] = "dspike"
    bounded: ClassVar[bool] = True
    width: float = 1.0
    scale: float = 1.0
    temperature: float = 3.0

    def derivative(self, x: Tensor) -> Tensor:
        z, b = x / self.width, self.temperature
        peak = self.scale * b / (2 * math.tanh(b / 2)) / self.width
        # Outside the window z is clamped so that cosh cannot overflow; the mask gives 0 there.
        return (z.abs() <= 0.5).to(x.dtype) * peak / torch.cosh(b * z.clamp(-0.5, 0.5)).square()

    def primitive(self, x: Tensor) -> Tensor:
        b = self.temperature
        z = (x / self.width).clamp(-0.5, 0.5)
        return self.scale * (torch.tanh(b * z) + math.tanh(b / 2)) / (2 * math.tanh(b / 2))


# The built-in surrogates. The position in this list is the surrogate's code in the kernels: csrc/scan/surrogate.h and
# kernels/scan/triton/surrogate.py have the same formulas in the same order.
SURROGATES: dict[str, type[Surrogate]] = {cls.name: cls for cls in (Rect, Triangle, ArcTan, Sigmoid, DSpike)}
# Code and methods of each built-in type, so that `why_not_compiled` detects a method that was replaced later.
_COMPILED = {
    cls: (code, cls.derivative, cls.constants, len(fields(cls))) for code, cls in enumerate(SURROGATES.values())
}


def kernel_code(surrogate: Surrogate) -> int:
    """Returns the kernel's code of a surrogate whose type is exactly one of `SURROGATES`; -1 for any other type."""
    return _COMPILED.get(type(surrogate), (-1,))[0]


def why_not_compiled(surrogate: Surrogate) -> str | None:
    """Returns why the compiled kernels cannot be used for ``surrogate``, in one sentence; None if they can.

    The kernels have only the formulas of `SURROGATES`. A subclass, a replaced method or a replaced field may compute
    something else.
    """
    cls = type(surrogate)
    methods = _COMPILED.get(cls)
    if methods is None:
        return f"the surrogate {cls.__name__} is not one of the library's own ({', '.join(SURROGATES)})"
    if cls.derivative is not methods[1] or cls.constants is not methods[2] or len(vars(surrogate)) != methods[3]:
        return f"a method of the surrogate {cls.__name__} was replaced"
    for value in vars(surrogate).values():
        if isinstance(value, Tensor):
            return f"the surrogate {cls.__name__} has a tensor as a constant"
    return None


def resolve_surrogate(surrogate: str | Surrogate) -> Surrogate:
    """Returns the surrogate of a given name with its default fields; an instance is returned unchanged."""
    if isinstance(surrogate, Surrogate):
        return surrogate
    if not isinstance(surrogate, str) or surrogate not in SURROGATES:
        raise ValueError(f"unknown surrogate {surrogate!r}; known: {', '.join(SURROGATES)}")
    return SURROGATES[surrogate]()
