"""The paper's neuron: LIF with learnable threshold and time constant, MP-Init and TrSG."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn

from steadyspike.core.spec import Reset, ScanSpec
from steadyspike.core.surrogate import Surrogate, resolve_surrogate
from steadyspike.nn.initial_potential import InitialPotential
from steadyspike.nn.neuron import Neuron
from steadyspike.nn.parametrization import (
    k_from_threshold,
    leak_from_w,
    per_layer_or_channel,
    threshold_from_k,
    w_from_tau,
)


class LIF(Neuron):
    """Leaky integrate-and-fire layer (paper eqs. 1 to 3), [T, B, ...] -> [T, B, ...].

        M[t] = (1 - 1/tau) U[t-1] + I[t] / tau
        S[t] = 1 where M[t] >= V
        U[t] = M[t] - V S[t]  (soft)  or  M[t] (1 - S[t])  (hard)

    V = softplus(k) and tau = 1/sigmoid(w); k and w have shape [1], or [channels].

    threshold, tau: values at the start; V > 0, tau > 1; a number, or one per channel.
    gradient: ``"trsg"`` (output V*S, gradient f'(M/V - 1)), ``"rs"`` (S, f'/V), ``"as"`` (S, f'(M - V)).
    surrogate: ``"rect"``, ``"triangle"``, ``"arctan"``, ``"sigmoid"``, ``"dspike"``, or an instance with its width.
    reset: ``"soft"``, ``"hard"``, or ``Reset(kind, detach)``.
    init: U[0]: ``"mp"`` (MP-Init), ``"zero"``, a number, `MPInit`, `LearnedInit`.
    learn: which of ``"threshold"`` and ``"tau"`` are trained; the others are frozen.
    channels: None: one V, tau and mean for the layer; C: one per channel.
    strict, decay_input: see `ScanSpec`. backend: ``"auto"``, ``"reference"``, ``"cpu"`` or ``"triton"``.
    """

    no_decay: ClassVar[tuple[str, ...]] = ("k", "w")
    threshold_name: ClassVar[str | None] = "k"
    LEARNABLE: ClassVar[tuple[str, ...]] = ("threshold", "tau")

    def __init__(
        self,
        threshold: float | Sequence[float] = 1.0,
        tau: float | Sequence[float] = 2.0,
        gradient: str = "trsg",
        surrogate: str | Surrogate = "rect",
        reset: str | Reset = "soft",
        init: str | float | InitialPotential = "mp",
        learn: Sequence[str] = ("threshold", "tau"),
        channels: int | None = None,
        *,
        strict: bool = False,
        decay_input: bool = True,
        backend: str = "auto",
    ) -> None:
        reset = reset if isinstance(reset, Reset) else Reset(reset)
        spec = ScanSpec(gradient, resolve_surrogate(surrogate), reset, strict, decay_input)
        super().__init__(spec, init, channels, backend)
        learn = (learn,) if isinstance(learn, str) else tuple(learn or ())
        for name in learn:
            if name not in self.LEARNABLE:
                raise ValueError(f"cannot learn {name!r}; known: {', '.join(self.LEARNABLE)}")
        k = [k_from_threshold(v) for v in per_layer_or_channel(threshold, channels, "threshold")]
        w = [w_from_tau(t) for t in per_layer_or_channel(tau, channels, "tau")]
        self.k = nn.Parameter(torch.tensor(k), requires_grad="threshold" in learn)
        self.w = nn.Parameter(torch.tensor(w), requires_grad="tau" in learn)

    @property
    def threshold(self) -> Tensor:
        return threshold_from_k(self.k)

    @property
    def leak(self) -> Tensor:
        return leak_from_w(self.w)

    @property
    def tau(self) -> Tensor:
        """tau = 1/a, [1] or [C]."""
        return 1 / self.leak
