"""MPBN (Guo et al., 2023): a neuron with a batch norm between charging and firing.

For inference it is folded into thresholds.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from steadyspike.core.reference_scan import ScanResult, Step, charge, per_channel, reset, scan_steps, spike
from steadyspike.core.spec import ScanSpec
from steadyspike.core.surrogate import DSpike
from steadyspike.nn.initial_potential import InitialPotential
from steadyspike.nn.lif import LIF
from steadyspike.nn.neuron import Neuron
from steadyspike.nn.neurons.scan_options import ScanOptions, Unpack, over
from steadyspike.nn.norm.bn import StepBN


class MPBN(LIF):
    """LIF with a batch norm on the membrane potential. [T, B, C, ...] -> [T, B, C, ...].

        M[t] = retention U[t-1] + I[t];  z = BN(M[t]);  S = 1(z > V);  U = M (1 - S)  (the reset acts on M, not on z)

    features: channels C of the input


        There is one BN for all steps. Each step is normalised by its own batch statistics, and the running statistics
        are updated T times per training forward, as in the authors' code. The network keeps the norm before the neuron
        (tdbn in the authors' code).
    threshold: the firing threshold of z, 0.5; fixed unless ``learn`` names it
    tau: 4/3, which is retention 0.25
    surrogate: Dspike of temperature 3 on z in [0, 1], which is width 2 in the argument z/V - 1

    MP-Init averages M, not z. `fold` returns the same neuron without the norm, for inference.
    """

    PUBLISHED: ClassVar[ScanOptions] = {
        "gradient": "rs",
        "surrogate": DSpike(width=2.0, temperature=3.0),
        "reset": "hard",
        "strict": True,
        "decay_input": False,
    }

    def __init__(
        self,
        features: int,
        threshold: float | Sequence[float] = 0.5,
        tau: float | Sequence[float] = 4 / 3,
        init: str | float | InitialPotential = "zero",
        learn: Sequence[str] | str | bool = (),
        channels: int | None = None,
        **options: Unpack[ScanOptions],
    ) -> None:
        merged = over(self.PUBLISHED, options)
        super().__init__(threshold, tau, init=init, learn=learn, channels=channels, **merged)
        self.norm = StepBN(features)

    def run(self, x: Tensor, u0: Tensor, membrane: bool = False) -> ScanResult:
        dtype = torch.promote_types(x.dtype, torch.float32)
        v, a = (per_channel(p.to(dtype), x.ndim - 1) for p in (self.threshold, self.leak))

        def step(x_t: Tensor, u: Tensor) -> Step:
            m = charge(x_t, u, a, self.spec)
            # In half precision the norm's parameters are half and M is float32; torch's batch norm needs one dtype.
            s = spike(self.norm(m[None].to(self.norm.weight.dtype))[0], v, self.spec)
            return Step(v * s if self.spec.family == "trsg" else s, s, m, reset(m, s, v, self.spec))

        return scan_steps(x, u0, step, membrane=membrane, channelwise=self.channels is not None)

    @torch.no_grad()
    def fold(self) -> FoldedMPBN:
        """Returns the same neuron in evaluation mode without the norm: it compares M with one level per channel."""
        return FoldedMPBN(self)


class FoldedMPBN(Neuron):
    """MPBN for inference: S = 1(sign M >= sign level), with one level and sign per channel and MPBN's reset.

    gamma (M - mean) / sd + beta >= V  is  M >= level = mean + (V - beta) sd / gamma  for gamma > 0, and M <= level for
    gamma < 0 (sign = -1). With gamma = 0 the channel always or never fires: level is -inf or +inf.
    """

    level: Tensor
    sign: Tensor
    fixed_threshold: Tensor
    fixed_leak: Tensor

    def __init__(self, source: MPBN) -> None:
        super().__init__(source.spec, "zero", source.channels, source.backend)
        self.init = copy.deepcopy(source.init)  # keeps MP-Init's running mean; a new object would start at 0
        norm, v = source.norm, source.threshold.detach()
        assert norm.bias is not None
        # float64, because rounding errors of the level would change spikes
        gamma, beta, mean, var = (
            p.detach().double() for p in (norm.weight, norm.bias, norm.running_mean, norm.running_var)
        )
        level = mean + (v.double() - beta) * (var + norm.eps).sqrt() / torch.where(gamma == 0, 1.0, gamma)
        fires = (beta > v) if source.spec.strict else (beta >= v)
        constant = torch.where(fires, -torch.inf, torch.inf).double()
        self.register_buffer("level", torch.where(gamma == 0, constant, level).to(norm.weight.dtype))
        self.register_buffer("sign", torch.where(gamma < 0, -1.0, 1.0).to(norm.weight.dtype))
        self.register_buffer("fixed_threshold", v.clone())
        self.register_buffer("fixed_leak", source.leak.detach().clone())
        self._firing = ScanSpec("as", source.spec.surrogate, source.spec.reset, source.spec.strict)
        self.train(source.training)

    @property
    def threshold(self) -> Tensor:
        """Returns V, which scales the output ("trsg") and is subtracted by a soft reset.

        The neuron fires at `level`.
        """
        return self.fixed_threshold

    @property
    def leak(self) -> Tensor:
        return self.fixed_leak

    def run(self, x: Tensor, u0: Tensor, membrane: bool = False) -> ScanResult:
        dtype = torch.promote_types(x.dtype, torch.float32)
        v, a, level, sign = (
            per_channel(p.to(dtype), x.ndim - 1) for p in (self.threshold, self.leak, self.level, self.sign)
        )

        def step(x_t: Tensor, u: Tensor) -> Step:
            m = charge(x_t, u, a, self.spec)
            # With a negative gamma both sides change sign, which turns "below the level" into "above".
            s = spike(sign * m, sign * level, self._firing)
            return Step(v * s if self.spec.family == "trsg" else s, s, m, reset(m, s, v, self.spec))

        return scan_steps(x, u0, step, membrane=membrane, channelwise=self.channels is not None)
