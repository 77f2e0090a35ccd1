"""MPS (Ding et al., 2025), the smoothing part: the potential is averaged with its past before the charge."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor, nn

from steadyspike.core.reference_scan import ScanResult, Step, lif_step, per_channel, scan_steps
from steadyspike.core.state import LIFState
from steadyspike.nn.initial_potential import InitialPotential
from steadyspike.nn.lif import LIF
from steadyspike.nn.neurons.scan_options import ScanOptions, Unpack, over
from steadyspike.nn.parametrization import SIGMOID, learned_names
from steadyspike.nn.stream_window import follow_stream


class MPSState(LIFState):
    """A `LIFState` that also carries the smoothed potential H."""

    __slots__ = ("smoothed",)

    def __init__(self, u: Tensor, step: int, layer: nn.Module, smoothed: Tensor) -> None:
        super().__init__(u, step, layer)
        self.smoothed = smoothed

    def _copy(self, u: Tensor) -> MPSState:
        plain = super()._copy(u)
        layer = plain._layer()
        assert layer is not None
        copied = MPSState(u, plain.step, layer, self.smoothed)
        copied.part = plain.part
        return copied

    def detach(self) -> MPSState:
        copied = self._copy(self.u.detach())
        copied.smoothed = self.smoothed.detach()
        return copied


class MPS(LIF):
    """LIF with a smoothed potential, with one coefficient alpha = sigmoid(theta) per layer.

        H[t] = alpha H[t-1] + (1 - alpha) U[t-1],   H[0] = U[0]
        M[t] = (1 - a) H[t] + I[t],   then fire and reset as in `LIF`

    Neither the paper's full text nor code was available. These points are unverified: the smoothing before the charge,
    the sigmoid, the starting alpha of 0.5 and the unscaled input (``alpha`` and ``decay_input`` change the last two).
    Soft reset and rect gradient are from the authors' follow-up work. is a second state per neuron, also in inference.
    With T = 1 alpha has no effect and gets no gradient.
    """

    no_decay: ClassVar[tuple[str, ...]] = ("k", "w", "theta")
    LEARNABLE: ClassVar[tuple[str, ...]] = ("threshold", "tau", "alpha")
    PUBLISHED: ClassVar[ScanOptions] = {"gradient": "as", "surrogate": "rect", "reset": "soft", "decay_input": False}

    def __init__(
        self,
        alpha: float = 0.5,
        tau: float | Sequence[float] = 2.0,
        threshold: float | Sequence[float] = 1.0,
        init: str | float | InitialPotential = "zero",
        learn: Sequence[str] | str | bool = ("alpha",),
        channels: int | None = None,
        **options: Unpack[ScanOptions],
    ) -> None:
        merged = over(self.PUBLISHED, options)
        super().__init__(threshold, tau, init=init, learn=learn, channels=channels, **merged)
        if not 0 < alpha < 1:
            raise ValueError(f"alpha is the weight of the smoothed past and must be in (0, 1); got {alpha}")
        self.add_constant("alpha", "theta", SIGMOID, [alpha], learned="alpha" in learned_names(learn, self.LEARNABLE))

    @property
    def alpha(self) -> Tensor:
        """Returns the smoothing coefficient, [1]."""
        return self.constant("alpha")

    def run(self, x: Tensor, u0: Tensor, membrane: bool = False) -> ScanResult:
        return self._run_from(x, u0, [], membrane)

    def _run_from(self, x: Tensor, u0: Tensor, smoothed: list[Tensor], membrane: bool = False) -> ScanResult:
        """Runs the scan from U = u0 and H = ``smoothed[-1]`` (U if the list is empty).

        Appends the final H to the list.
        """
        dtype = torch.promote_types(x.dtype, torch.float32)
        v, a = (per_channel(p.to(dtype), x.ndim - 1) for p in (self.threshold, self.leak))
        alpha = self.alpha.to(dtype)
        past = smoothed[-1] if smoothed else None

        def step(x_t: Tensor, u: Tensor) -> Step:
            nonlocal past
            past = u if past is None else alpha * past + (1 - alpha) * u
            return lif_step(x_t, past, v, a, self.spec)

        result = scan_steps(x, u0, step, membrane=membrane, channelwise=self.channels is not None)
        assert past is not None
        smoothed.append(past)
        return result

    def scan(self, x: Tensor, state: LIFState | None = None) -> tuple[Tensor, MPSState]:
        self.check_input(x)
        if state is None:
            u0, smoothed, seen = self.init.potential(x), [], 0
        elif isinstance(state, MPSState):
            u0, smoothed, seen = state.take(x, self), [state.smoothed], state.step
        else:
            raise TypeError(
                f"state must be the MPSState that MPS.scan returned, or None to start; got {type(state).__name__}"
            )
        result = self.watched_run(x, u0, partial(self._run_from, smoothed=smoothed))
        after = MPSState(result.u, x.shape[0] + seen, self, smoothed[-1])
        follow_stream(self, state, after, result.out)
        return result.out, after
