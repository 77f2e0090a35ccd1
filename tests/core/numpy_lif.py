"""A second, independent LIF in NumPy float64: the equations and their backward recursion written out literally.

Nothing here is shared with the package, on purpose. Shapes: X [T, B, C], the input current; V, a [1] or [C]; U0 [B, C].
"""

from __future__ import annotations

import math

import numpy as np


def f_prime(kind: str, x: np.ndarray, g: float, scale: float = 1.0, b: float = 3.0) -> np.ndarray:
    if kind == "rect":
        return scale * np.where(np.abs(x) < g / 2, 1.0 / g, 0.0)
    if kind == "triangle":
        return scale * np.maximum(0.0, g - np.abs(x)) / g**2
    if kind == "arctan":
        return scale * g / (2 * (1 + (math.pi / 2 * g * x) ** 2))
    if kind == "sigmoid":
        s = 1 / (1 + np.exp(-x / g))
        return scale * s * (1 - s) / g
    if kind == "dspike":
        inside = np.abs(x / g) <= 0.5
        return scale * np.where(inside, b / (2 * np.tanh(b / 2) * np.cosh(b * x / g) ** 2), 0.0) / g
    raise AssertionError(kind)


def forward(X, U0, V, a, family, reset, strict=False, decay_input=True):
    """Returns O, S, M, U, each [T, B, C]."""
    U = np.broadcast_to(U0, X.shape[1:]).astype(np.float64)
    out = {"O": [], "S": [], "M": [], "U": []}
    for t in range(X.shape[0]):
        M = (1 - a) * U + (a if decay_input else 1.0) * X[t]
        S = (M > V if strict else M >= V).astype(np.float64)
        if reset == "soft":
            U = M - V * S
        elif reset == "hard":
            U = M * (1 - S)
        else:
            U = M
        for key, value in zip("OSMU", (V * S if family == "trsg" else S, S, M, U)):
            out[key].append(value)
    return tuple(np.stack(out[key]) for key in "OSMU")


def backward(X, U0, V, a, family, reset, detach, kind, g, gO, gU, gM, scale=1.0, strict=False, decay_input=True):
    """dL/dX, dL/dU0 [B, C], dL/dV and dL/da per channel [C]; gU is the gradient into U[T] only."""
    T = X.shape[0]
    _, S_all, M_all, U_all = forward(X, U0, V, a, family, reset, strict, decay_input)
    dX = np.zeros_like(X)
    dV = np.zeros(X.shape[2])
    da = np.zeros(X.shape[2])
    dU = np.zeros_like(X[0])
    for t in reversed(range(T)):
        M, S = M_all[t], S_all[t]
        U_prev = U_all[t - 1] if t else np.broadcast_to(U0, X.shape[1:])
        if family == "as":
            f = f_prime(kind, M - V, g, scale)
            s_M, s_V = f, -f
        else:
            f = f_prime(kind, M / V - 1, g, scale)
            s_M, s_V = f / V, -f * M / V**2
        if family == "trsg":
            o_M, o_V = f, S - f * M / V
        else:
            o_M, o_V = s_M, s_V
        if reset == "none":
            u_M, u_V = np.ones_like(M), np.zeros_like(M)
        elif reset == "soft":
            u_M = 1 - V * s_M if detach == "none" else np.ones_like(M)
            u_V = {"none": -S - V * s_V, "spike": -S, "product": np.zeros_like(S)}[detach]
        else:
            u_M = (1 - S) - (M * s_M if detach == "none" else 0)
            u_V = -M * s_V if detach == "none" else np.zeros_like(M)
        if t == T - 1:
            dU = dU + gU
        dV += (gO[t] * o_V + dU * u_V).sum(0)
        dM = gO[t] * o_M + dU * u_M + gM[t]
        da += (dM * ((X[t] if decay_input else 0.0) - U_prev)).sum(0)
        dX[t] = (a if decay_input else 1.0) * dM
        dU = (1 - a) * dM
    return dX, dU, dV, da
