"""A readout: a membrane that integrates its input and never spikes; its output is the potential."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn

from steadyspike.core.lif import ScanResult
from steadyspike.core.spec import Reset, ScanSpec
from steadyspike.nn.initial_potential import InitialPotential, MPInit
from steadyspike.nn.neuron import Neuron
from steadyspike.nn.parametrization import leak_from_w, per_layer_or_channel, w_from_tau


class Readout(Neuron):
    """O[t] = M[t] = (1 - 1/tau) M[t-1] + I[t] / tau, no spike, no reset. [T, B, ...] -> [T, B, ...].

    tau: the time constant; None integrates without leak and without scaling (M[t] = M[t-1] + I[t], DIET-SNN's output).
    learn: whether tau is trained. decay_input: False charges with I[t] instead of I[t]/tau.
    init: MP-Init averages over neurons that fired; none do here, so it is refused.
    """

    runs_kernel: ClassVar[bool] = True
    spiking: ClassVar[bool] = False
    no_decay: ClassVar[tuple[str, ...]] = ("w",)
    w: nn.Parameter | None
    unused_threshold: Tensor
    no_leak: Tensor

    def __init__(
        self,
        tau: float | Sequence[float] | None = 2.0,
        learn: bool = False,
        init: str | float | InitialPotential = "zero",
        channels: int | None = None,
        *,
        decay_input: bool = True,
        backend: str = "auto",
    ) -> None:
        if init == "mp" or isinstance(init, MPInit):
            raise ValueError("MP-Init averages over neurons that fired and a readout never fires; use init='zero'")
        if tau is None and learn:
            raise ValueError("a readout without leak (tau=None) has no time constant to learn")
        spec = ScanSpec("as", reset=Reset("none"), decay_input=decay_input and tau is not None)
        super().__init__(spec, init, channels, backend)
        self.register_buffer("unused_threshold", torch.ones(1), persistent=False)
        self.register_buffer("no_leak", torch.zeros(1), persistent=False)
        w = None if tau is None else torch.tensor([w_from_tau(t) for t in per_layer_or_channel(tau, channels, "tau")])
        self.register_parameter("w", None if w is None else nn.Parameter(w, requires_grad=learn))

    @property
    def threshold(self) -> Tensor:
        return self.unused_threshold

    @property
    def leak(self) -> Tensor:
        return self.no_leak if self.w is None else leak_from_w(self.w)

    def run(self, x: Tensor, u0: Tensor, membrane: bool = False) -> ScanResult:
        result = super().run(x, u0, membrane=True)
        assert result.m is not None
        return result._replace(out=result.m.to(x.dtype), m=result.m if membrane else None)

    def spikes(self, out: Tensor) -> Tensor:
        raise TypeError("a readout has no spikes: its output is the membrane potential")
