"""The paper's neuron: LIF with learnable threshold and time constant, MP-Init and TrSG."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from torch import Tensor

from steadyspike.core.spec import Reset, ScanSpec
from steadyspike.core.surrogate import Surrogate, resolve_surrogate
from steadyspike.nn.initial_potential import InitialPotential
from steadyspike.nn.neuron import Neuron
from steadyspike.nn.parametrization import SIGMOID, SOFTPLUS, learned_names, per_layer_or_channel, w_from_tau


class LIF(Neuron):
    """Leaky integrate-and-fire layer (paper eqs. 1 to 3), [T, B, ...] -> [T, B, ...].

        M[t] = (1 - 1/tau) U[t-1] + I[t] / tau
        S[t] = 1 where M[t] >= V
        U[t] = M[t] - V S[t]  (soft)  or  M[t] (1 - S[t])  (hard)

    A learned V is softplus(k) and a learned tau is 1/sigmoid(w), with k and w of shape [1] or [channels]. A fixed
    constant is stored as the number itself (`nn.constants`).

    threshold, tau: starting values, V > 0 and tau > 1; a number, or one per channel
    gradient: ``"trsg"`` (output V*S, gradient f'(M/V - 1)), ``"rs"`` (S, f'/V), ``"as"`` (S, f'(M - V))
    surrogate: ``"rect"``, ``"triangle"``, ``"arctan"``, ``"sigmoid"``, ``"dspike"``, or an instance with its width
    reset: ``"soft"``, ``"hard"``, or ``Reset(kind, detach)``
    init: U[0]: ``"mp"`` (MP-Init), ``"zero"``, a number, `MPInit`, `LearnedInit`
    learn: which of ``"threshold"`` and ``"tau"`` are trained; True for both, ``()`` or False for none
    channels: None: one V, tau and running mean for the layer; C: one per channel
    strict, decay_input: see `ScanSpec`
    backend: ``"auto"``, ``"reference"``, ``"cpu"`` or ``"triton"``
    """

    no_decay: ClassVar[tuple[str, ...]] = ("k", "w")
    LEARNABLE: ClassVar[tuple[str, ...]] = ("threshold", "tau")

    def __init__(
        self,
        threshold: float | Sequence[float] = 1.0,
        tau: float | Sequence[float] = 2.0,
        gradient: str = "trsg",
        surrogate: str | Surrogate = "rect",
        reset: str | Reset = "soft",
        init: str | float | InitialPotential = "mp",
        learn: Sequence[str] | str | bool = ("threshold", "tau"),
        channels: int | None = None,
        *,
        strict: bool = False,
        decay_input: bool = True,
        backend: str = "auto",
    ) -> None:
        reset = reset if isinstance(reset, Reset) else Reset(reset)
        spec = ScanSpec(gradient, resolve_surrogate(surrogate), reset, strict, decay_input)
        super().__init__(spec, init, channels, backend)
        names = learned_names(learn, self.LEARNABLE)
        thresholds = per_layer_or_channel(threshold, channels, "threshold")
        taus = per_layer_or_channel(tau, channels, "tau")
        for value in taus:
            w_from_tau(value)  # raises an error for a tau out of range
        self.add_constant("threshold", "k", SOFTPLUS, thresholds, learned="threshold" in names)
        self.add_constant("leak", "w", SIGMOID, [1 / t for t in taus], learned="tau" in names)

    @property
    def tau(self) -> Tensor:
        """tau = 1/a, [1] or [C]."""
        return 1 / self.leak
