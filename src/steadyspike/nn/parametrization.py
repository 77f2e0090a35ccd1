"""Maps from parameters to neuron constants: V = softplus(k), 1/tau = sigmoid(w) (paper, "Stable parameterization").

In exact arithmetic V > 0 and tau > 1 for every k and w. In float32 this does not hold: sigmoid(17) is 1 and
sigmoid(-104) is 0, with a derivative of 0, so that such a neuron never learns again. Each `Link` therefore has three
guards:

- The parameter is limited to ``low .. high``. V is from 1e-9 to 1e9, so that M/V**2 in the gradient cannot overflow.
  tau is from 1.000001 to 1e8, which float32 can represent. `Link.value` computes with the limited parameter.
- `Link.limit` sets a parameter that has left this range to the end of the range. Neuron layers call it in every
  training forward; otherwise a parameter could drift so far outside that it would need many steps to return.
- The backward pass uses a slope of at least `LEAST_SLOPE`. The gradient is exact for V > 0.001 and tau between 1.001
  and 1022, and larger than the exact one outside.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from steadyspike.core.transforms import is_transformed
from steadyspike.kernels.scan.cpu.plan import LEAST_SLOPE, LinkRange


@dataclass(frozen=True)
class Link:
    """A map from a parameter to a constant.

    forward: parameter -> constant
    slope: (parameter, constant) -> derivative
    inverse: constant -> parameter, with a ValueError for a constant out of range
    low, high: range of the parameter
    native: the same map in C++, with a code for the slope
    """

    forward: Callable[[Tensor], Tensor]
    slope: Callable[[Tensor, Tensor], Tensor]
    inverse: Callable[[float], float]
    low: float
    high: float
    native: LinkRange = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "native", LinkRange(_SLOPE_CODES.get(self.slope, -1), self.low, self.high))

    def value(self, raw: Tensor) -> Tensor:
        """Returns the constant, in float32 or better."""
        raw = raw.to(torch.promote_types(raw.dtype, torch.float32))
        if is_transformed():
            return _TransformedLinkedValue.apply(raw, self, self.low, self.high)
        if not raw.requires_grad:
            return self.limited(raw)
        return _LinkedValue.apply(raw, self, self.low, self.high)

    def limited(self, raw: Tensor) -> Tensor:
        """Returns the constant of the parameter.

        A parameter outside of its range is set to the end of the range first.
        """
        return self.forward(raw.clamp(self.low, self.high))

    def contains(self, raw: Tensor) -> bool:
        """Returns True if the whole parameter is in its range; for tensors on the CPU.

        Reading one number in Python takes a tenth of the time of an operator.
        """
        if raw.numel() == 1:
            return self.low <= raw.item() <= self.high
        low, high = raw.detach().aminmax()  # NaN if there is one
        return self.low <= low.item() and high.item() <= self.high

    @torch.no_grad()
    def limit(self, raw: Tensor) -> None:
        """Clamps ``raw`` to its range, in place and without registering the change with autograd; a NaN stays a NaN."""
        info = torch.finfo(raw.dtype)
        raw.data.clamp_(max(self.low, info.min), min(self.high, info.max))

    @torch.no_grad()
    def nearest(self, values: Sequence[float], dtype: torch.dtype | None = None) -> Tensor:
        """Returns the parameters, [n], whose constants in floating point are nearest to ``values``."""
        # On the CPU, also if a model is built under torch.device("meta"), because there the operators below would
        # import torch's compiler, which takes two seconds.
        device, cpu = torch.get_default_device(), torch.device("cpu")
        exact = torch.tensor([self.inverse(v) for v in values], dtype=torch.float64, device=cpu)
        start = exact.to(dtype or torch.get_default_dtype())
        steps = [start]
        # The inverse in float64, rounded, need not give the nearest constant, so its 8 neighbours on each side are
        # tried. In half precision there is only the start.
        for end in (-torch.inf, torch.inf):
            near = start
            for _ in range(8):
                bound = torch.full_like(near, end, device=cpu)
                near = torch.nextafter(near, bound) if near.dtype.itemsize >= 4 else near
                steps.append(near)
        candidates = torch.stack(steps)
        targets = torch.tensor(values, dtype=torch.float64, device=cpu)
        best = (self.value(candidates).double() - targets).abs().argmin(0)
        return candidates.gather(0, best[None])[0].to(device)


class _LinkedValue(torch.autograd.Function):
    """`Link.forward` of the parameter limited to low and high, with a slope of at least `LEAST_SLOPE` in the backward.

    low and high are arguments, and the slope is written as a number, because a backward that torch.compile traces with
    dynamic shapes supports no numbers that are attributes or globals.
    """

    @staticmethod
    def forward(ctx, raw: Tensor, link: Link, low: float, high: float) -> Tensor:  # type: ignore[no-untyped-def]
        ctx.link, ctx.range = link, (low, high)
        ctx.save_for_backward(raw)
        return link.forward(raw.clamp(low, high))

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None, None, None]:  # type: ignore[no-untyped-def]
        (raw,) = ctx.saved_tensors
        inside = raw.clamp(*ctx.range)
        slope = ctx.link.slope(inside, ctx.link.forward(inside))
        return grad * slope.clamp_min(2.0**-10), None, None, None


class _TransformedLinkedValue(torch.autograd.Function):
    """`_LinkedValue` in the form that torch.func and forward mode need; torch.compile does not accept this form."""

    generate_vmap_rule = True
    backward = _LinkedValue.backward

    @staticmethod
    def forward(raw: Tensor, link: Link, low: float, high: float) -> Tensor:
        return link.forward(raw.clamp(low, high))

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
        raw, ctx.link, low, high = inputs
        ctx.range = (low, high)
        ctx.save_for_backward(raw)
        ctx.save_for_forward(raw)

    @staticmethod
    def jvp(ctx, raw_t: Tensor, *_: None) -> Tensor:  # type: ignore[no-untyped-def]
        return _LinkedValue.backward(ctx, raw_t)[0]


assert LEAST_SLOPE == 2.0**-10


def k_from_threshold(threshold: float) -> float:
    """Returns k with softplus(k) = threshold; the formula is accurate for tiny thresholds too."""
    if not 1e-30 <= threshold <= 1e30:
        raise ValueError(f"threshold must be a number above 0 (1e-30 to 1e30, the range of float32), got {threshold}")
    # log(exp(V) - 1) = V + log(1 - exp(-V)); expm1 keeps the digits of tiny V, and exp(V) cannot overflow.
    return threshold + math.log(-math.expm1(-threshold))


def w_from_tau(tau: float) -> float:
    """Returns w with 1 / sigmoid(w) = tau."""
    if not 1 + 1e-6 <= tau <= 1e8:
        raise ValueError(f"tau must be a number above 1 (1.000001 to 1e8, because of float32), got {tau}")
    return -math.log(tau - 1)


def _w_from_leak(leak: float) -> float:
    """Returns w with sigmoid(w) = leak."""
    return math.log(leak) - math.log1p(-leak)


def _same(x: float) -> float:
    return x


def _identity(x: Tensor) -> Tensor:
    return x + 0.0


def _sigmoid_slope(w: Tensor, a: Tensor) -> Tensor:
    # a (1 - a) as a sigmoid(-w), because 1 - a would lose all digits if a is near 1.
    return a * torch.sigmoid(-w) if torch.is_grad_enabled() else w.neg().sigmoid_().mul_(a)


def _softplus_slope(k: Tensor, v: Tensor) -> Tensor:
    return torch.sigmoid(k)


def _tanh_slope(w: Tensor, v: Tensor) -> Tensor:
    return 1 - v * v


def _unit_slope(x: Tensor, value: Tensor) -> Tensor:
    return torch.ones_like(x)


# LinkCode of csrc/neuron/neuron_abi.h, for the slopes that C++ implements.
_SLOPE_CODES: dict[object, int] = {_softplus_slope: 1, _sigmoid_slope: 2}

SOFTPLUS = Link(F.softplus, _softplus_slope, k_from_threshold, k_from_threshold(1e-9), 1e9)
SIGMOID = Link(torch.sigmoid, _sigmoid_slope, _w_from_leak, w_from_tau(1e8), w_from_tau(1 + 1e-6))
TANH = Link(torch.tanh, _tanh_slope, math.atanh, -7.25, 7.25)
RAW = Link(_identity, _unit_slope, _same, -math.inf, math.inf)
AT_MOST_ONE = replace(RAW, high=1.0)


def per_layer_or_channel(value: float | Sequence[float] | Tensor, channels: int | None, name: str) -> list[float]:
    """Returns ``value`` as a list of 1 (layer-wise) or ``channels`` floats."""
    many = isinstance(value, (list, tuple)) or getattr(value, "ndim", 0) > 0
    try:
        values = [float(v) for v in (value if many else [value])]  # type: ignore[union-attr, arg-type]
    except (TypeError, ValueError):
        raise TypeError(f"{name} must be a number, or one per channel, got {value!r}") from None
    count = channels or 1
    if len(values) == 1:
        return values * count
    if len(values) != count:
        raise ValueError(
            f"{name} has {len(values)} values, but the layer has {'channels=' + str(channels) if channels else 'one'}"
        )
    return values


def learned_names(learn: Sequence[str] | str | bool | None, learnable: Sequence[str]) -> tuple[str, ...]:
    """Returns the names chosen by ``learn``: one name or several; True means all names, False or None no name."""
    names = tuple(learnable) if learn is True else (learn,) if isinstance(learn, str) else tuple(learn or ())
    for name in names:
        if name not in learnable:
            raise ValueError(f"cannot learn {name!r}; known: {', '.join(learnable)}")
    return names
