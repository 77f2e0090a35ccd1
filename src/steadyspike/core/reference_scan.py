"""The reference LIF scan in plain PyTorch. Tests compare every kernel with it.

Paper eqs. 1 to 3, for t = 1..T, with a = 1/tau and sg(.) = stop gradient:

    charge   M[t] = (1 - a) U[t-1] + a I[t]              (decay_input=False: + I[t])
    fire     S[t] = 1 if M[t] >= V else 0                (strict=True: M > V)
    output   O[t] = S[t], or V S[t] for "trsg"           (eq. 10)
    reset    U[t] = M[t] - V S[t]  |  M[t] (1 - S[t])    (soft | hard)

Autograd differentiates these equations as written; dS/dM and dS/dV come from the surrogate of `ScanSpec`.

Shapes: x [T, B, ...]; u0 [1], [C] (C is axis 2 of x) or x.shape[1:]; v and a [1] or [C]. Half-precision input is
computed in float32, and the output has the input's dtype. A NaN potential gives a NaN output, so that it is noticed and
not treated as "no spike".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from steadyspike.core.spec import ScanSpec
from steadyspike.core.surrogate import Surrogate
from steadyspike.core.transforms import is_transformed
from steadyspike.core.widest import widest


class ScanResult(NamedTuple):
    """The results of a scan.

    out: O, [T, B, ...]
    u: U[T], [B, ...]
    m: M, [T, B, ...], or None if ``membrane`` was False
    active: [2, n] float64, the statistics that MP-Init needs (Algorithm 1), without gradient. ``active[0]`` is the sum
        of U[T] over the neurons that fired at least once, and ``active[1]`` is the number of these neurons; per channel
        (n = C) or for the whole layer (n = 1).
    """

    out: Tensor
    u: Tensor
    m: Tensor | None
    active: Tensor


class Step(NamedTuple):
    """The results of one time step, each [B, ...]: output O, spike S, M before and U after the reset."""

    out: Tensor
    s: Tensor
    m: Tensor
    u: Tensor


class _Spike(torch.autograd.Function):
    """Forward: the given 0/1 (or NaN) values. Backward: the surrogate derivative at x."""

    @staticmethod
    def forward(ctx, x: Tensor, fired: Tensor, surrogate: Surrogate) -> Tensor:  # type: ignore[no-untyped-def]
        ctx.save_for_backward(x)
        ctx.surrogate = surrogate
        return fired.clone()

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None, None]:  # type: ignore[no-untyped-def]
        (x,) = ctx.saved_tensors
        return grad * ctx.surrogate.derivative(x), None, None


class _TransformedSpike(torch.autograd.Function):
    """`_Spike` in the form that torch.func and forward mode need; torch.compile does not accept this form."""

    generate_vmap_rule = True
    backward = _Spike.backward

    @staticmethod
    def forward(x: Tensor, fired: Tensor, surrogate: Surrogate) -> Tensor:
        return fired.clone()

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
        x, _, ctx.surrogate = inputs
        ctx.save_for_backward(x)
        ctx.save_for_forward(x)

    @staticmethod
    def jvp(ctx, x_t: Tensor, fired_t: Tensor | None, _: None) -> Tensor:  # type: ignore[no-untyped-def]
        (x,) = ctx.saved_tensors
        return x_t * ctx.surrogate.derivative(x)


def per_channel(p: Tensor, ndim: int) -> Tensor:
    """Reshapes a [1] or [C] parameter so that it broadcasts over [B, C, ...] of ``ndim`` axes (channels are axis 1)."""
    return p if p.numel() == 1 else p.view(-1, *([1] * (ndim - 2)))


def spike(m: Tensor, v: Tensor, spec: ScanSpec) -> Tensor:
    """Returns the spike S = H(M - V) with the family's surrogate gradient.

    m: [B, ...]; v broadcasts to it
    """
    x = m - v if spec.family == "as" else m / v - 1
    fired = ((m > v) if spec.strict else (m >= v)).to(m.dtype)
    fired = torch.where(torch.isnan(m), m, fired)
    function = _TransformedSpike if is_transformed() else _Spike
    return function.apply(x, fired.detach(), spec.surrogate)


def reset(m: Tensor, s: Tensor, v: Tensor, spec: ScanSpec) -> Tensor:
    """Returns the potential U after the reset, from M and S (eq. 3).

    ``spec.reset.detach`` decides which part passes a gradient.
    """
    if spec.reset.kind == "none":
        return m
    if spec.reset.detach != "none":
        s = s.detach()
    if spec.reset.kind == "hard":
        return m * (1 - s)
    amount = v * s
    return m - (amount.detach() if spec.reset.detach == "product" else amount)


def charge(x: Tensor, u: Tensor, a: Tensor, spec: ScanSpec) -> Tensor:
    """Returns the charged potential M, from the previous U and the input current (eq. 1); all broadcast to [B, ...]."""
    return (1 - a) * u + (a * x if spec.decay_input else x)


def lif_step(x: Tensor, u: Tensor, v: Tensor, a: Tensor, spec: ScanSpec) -> Step:
    """Computes one time step: charge, fire, reset.

    x and u: [B, ...]; v and a broadcast to it
    """
    m = charge(x, u, a, spec)
    s = spike(m, v, spec)
    return Step(v * s if spec.family == "trsg" else s, s, m, reset(m, s, v, spec))


def active_statistics(u: Tensor, fired: Tensor, channelwise: bool) -> Tensor:
    """Returns the sum of U[T] over the neurons that fired, and their number: [2, 1] or [2, C].

    u, fired (bool): [B, C, ...]
    """
    axes = [i for i in range(u.ndim) if not (channelwise and i == 1)]
    kept = torch.where(fired, u.detach(), torch.zeros_like(u)).to(widest(u.device))
    return torch.stack([kept.sum(axes).reshape(-1), fired.to(kept.dtype).sum(axes).reshape(-1)])


def reference_scan(
    x: Tensor, u0: Tensor, v: Tensor, a: Tensor, spec: ScanSpec, *, membrane: bool = False, channelwise: bool = False
) -> ScanResult:
    """The LIF scan over time; see the module docstring for equations and shapes."""
    dtype = torch.promote_types(x.dtype, torch.float32)
    v, a = (per_channel(p.to(dtype), x.ndim - 1) for p in (v, a))
    return scan_steps(x, u0, lambda x_t, u: lif_step(x_t, u, v, a, spec), membrane=membrane, channelwise=channelwise)


def scan_steps(
    x: Tensor, u0: Tensor, step: Callable[[Tensor, Tensor], Step], *, membrane: bool = False, channelwise: bool = False
) -> ScanResult:
    """Runs ``step(x[t], U[t-1])`` over time. Neurons whose dynamics differ from plain LIF pass their own step."""
    dtype = torch.promote_types(x.dtype, torch.float32)
    ndim = x.ndim - 1
    u = u0.to(dtype)
    u = u if u.ndim == ndim and u.ndim > 1 else per_channel(u, ndim)
    u = u.expand(x.shape[1:])
    fired = torch.zeros(x.shape[1:], dtype=torch.bool, device=x.device)
    outs, ms = [], []
    for x_t in x.unbind(0):
        out, s, m, u = step(x_t.to(dtype), u)
        fired = fired | (s.detach() > 0)
        outs.append(out.to(x.dtype))
        ms.append(m)
    stacked = torch.stack(ms) if membrane else None
    return ScanResult(torch.stack(outs), u, stacked, active_statistics(u, fired, channelwise))
