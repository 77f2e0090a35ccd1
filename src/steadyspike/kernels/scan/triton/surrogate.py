# mypy: allow-untyped-defs, allow-incomplete-defs
# Triton reads the annotations of a Triton function, so only those that it supports are used.
"""The surrogate derivatives of core/surrogate.py in Triton, by their code (the position in `SURROGATES`)."""

import math
from collections.abc import Sequence

import triton
import triton.language as tl


def surrogate_constants(code: int, constants: Sequence[float]) -> tuple[float, float, float]:
    """Returns (edge, slope, height) as `surrogate` uses them, from (width, scale, temperature) of `ScanSpec`."""
    width, scale, b = constants
    if code == 0:
        return width / 2, 0.0, scale / width
    if code == 1:
        return width, 0.0, scale / width**2
    if code == 2:
        return 0.0, math.pi / 2 * width, scale * width / 2
    if code == 3:
        return 0.0, 1 / width, scale / width
    if code == 4:
        return width / 2, 2 * b / width, 4 * scale * b / (2 * math.tanh(b / 2)) / width
    raise ValueError(f"the Triton kernel has no surrogate with code {code}; known: 0 to 4")


@triton.jit
def surrogate(x, edge, slope, height, CODE: tl.constexpr):
    """Computes f'(x) of `core.surrogate` from the constants of `surrogate_constants`.

    Conditions are written so that a NaN argument gives the same as in the reference: 0 in the rectangle, otherwise NaN.
    """
    size = tl.abs(x)
    if CODE == 0:
        return tl.where(size < edge, height, 0.0)
    elif CODE == 1:
        return tl.where(size >= edge, 0.0, height * (edge - size))
    elif CODE == 2:
        z = slope * x
        return height / (1 + z * z)
    else:
        # 4 cosh^-2(y/2) = e / (1 + e)^2 with e = exp(-|y|) serves both the sigmoid and Dspike and cannot overflow.
        e = tl.exp(-slope * size)
        bell = height * e / ((1 + e) * (1 + e))
        if CODE == 3:
            return bell
        else:
            return tl.where(size > edge, 0.0, bell)
