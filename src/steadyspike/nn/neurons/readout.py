"""`Readout`: an output layer that integrates its input and never spikes; its output is the potential."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from steadyspike.core.reference_scan import ScanResult
from steadyspike.core.spec import Reset, ScanSpec
from steadyspike.nn.initial_potential import InitialPotential, MPInit
from steadyspike.nn.neuron import Neuron
from steadyspike.nn.parametrization import RAW, SIGMOID, learned_names, per_layer_or_channel, w_from_tau


class Readout(Neuron):
    """Leaky integrator without spikes and reset. [T, B, ...] -> [T, B, ...].

        O[t] = M[t] = (1 - 1/tau) M[t-1] + I[t] / tau

    tau: the time constant; None integrates without leak and scaling (M[t] = M[t-1] + I[t], as in DIET-SNN's output)
    learn: ``("tau",)`` or True trains tau
    decay_input: False charges with I[t] instead of I[t]/tau
    init: all but MP-Init, which averages over neurons that fired; a readout never fires
    """

    runs_kernel: ClassVar[bool] = True
    spiking: ClassVar[bool] = False
    no_decay: ClassVar[tuple[str, ...]] = ("w",)
    LEARNABLE: ClassVar[tuple[str, ...]] = ("tau",)
    unused_threshold: Tensor

    def __init__(
        self,
        tau: float | Sequence[float] | None = 2.0,
        learn: Sequence[str] | str | bool = (),
        init: str | float | InitialPotential = "zero",
        channels: int | None = None,
        *,
        decay_input: bool = True,
        backend: str = "auto",
    ) -> None:
        if init == "mp" or isinstance(init, MPInit):
            raise ValueError("MP-Init averages over neurons that fired and a readout never fires; use init='zero'")
        names = learned_names(learn, self.LEARNABLE)
        if tau is None and names:
            raise ValueError("a readout without leak (tau=None) has no time constant to learn; give tau or learn=()")
        spec = ScanSpec("as", reset=Reset("none"), decay_input=decay_input and tau is not None)
        super().__init__(spec, init, channels, backend)
        self.register_buffer("unused_threshold", torch.ones(1), persistent=False)
        if tau is None:
            self.add_constant("leak", None, RAW, [0.0], learned=False)
            return
        taus = per_layer_or_channel(tau, channels, "tau")
        for value in taus:
            w_from_tau(value)  # raises an error for a tau out of range
        self.add_constant("leak", "w", SIGMOID, [1 / t for t in taus], learned="tau" in names)

    @property
    def threshold(self) -> Tensor:
        return self.unused_threshold

    def run(self, x: Tensor, u0: Tensor, membrane: bool = False) -> ScanResult:
        result = super().run(x, u0, membrane=True)
        assert result.m is not None
        return result._replace(out=result.m.to(x.dtype), m=result.m if membrane else None)

    def spikes(self, out: Tensor) -> Tensor:
        raise TypeError("a readout has no spikes: its output is the membrane potential")
