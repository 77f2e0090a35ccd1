"""MPBN (Guo et al., 2023): a batch norm between charge and fire, folded into thresholds for inference."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from steadyspike.core.lif import ScanResult, Step, charge, per_channel, reset, scan_steps, spike
from steadyspike.core.spec import ScanSpec
from steadyspike.core.surrogate import DSpike
from steadyspike.nn.initial_potential import InitialPotential
from steadyspike.nn.lif import LIF
from steadyspike.nn.neuron import Neuron
from steadyspike.nn.neurons.scan_options import ScanOptions, over
from steadyspike.nn.norm.bn import StepBN

if TYPE_CHECKING:
    from typing import Unpack


class MPBN(LIF):
    """M[t] = retention U[t-1] + I[t];  z = BN(M[t]);  S = 1(z > V);  U = M (1 - S): the reset acts on M, not on z.

    features: channels of the input (axis 2), one BN for all steps, with the batch statistics of each step on its own;
        the running statistics move T times per training forward, as in the authors' code. The norm before the neuron
        stays (theirs is tdbn).
    threshold: 0.5, the firing level on z; fixed unless ``learn``. tau: 4/3, i.e. retention 0.25.
    surrogate: Dspike of temperature 3 on z in [0, 1]; in the relative argument z/V - 1 that is width 2.

    MP-Init describes M's own scale, not z's. `fold` gives the same neuron without the norm.
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
            s = spike(self.norm(m[None])[0], v, self.spec)
            return Step(v * s if self.spec.family == "trsg" else s, s, m, reset(m, s, v, self.spec))

        return scan_steps(x, u0, step, membrane=membrane, channelwise=self.channels is not None)

    @torch.no_grad()
    def fold(self) -> FoldedMPBN:
        """The neuron of evaluation mode without the norm: fires where M passes a level of its channel."""
        return FoldedMPBN(self)


class FoldedMPBN(Neuron):
    """MPBN for inference: S = 1(sign M >= sign level), one level and sign per channel; the reset is MPBN's.

    gamma (M - mean) / sd + beta >= V  is  M >= level = mean + (V - beta) sd / gamma  for gamma > 0, and M <= level for
    gamma < 0 (sign = -1). With gamma = 0 the channel always or never fires: level is -inf or +inf.
    """

    level: Tensor
    sign: Tensor
    fixed_threshold: Tensor
    fixed_leak: Tensor

    def __init__(self, source: MPBN) -> None:
        super().__init__(source.spec, "zero", source.channels, source.backend)
        self.init = copy.deepcopy(source.init)  # with what MP-Init has measured; a new layer's would start at 0
        norm, v = source.norm, source.threshold.detach()
        assert norm.bias is not None
        # float64: the level stands for a comparison, and its rounding would move spikes.
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
        """V: what the output is scaled by ("trsg") and a soft reset takes away; `level` is where a neuron fires."""
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
            s = spike(sign * m, sign * level, self._firing)
            return Step(v * s if self.spec.family == "trsg" else s, s, m, reset(m, s, v, self.spec))

        return scan_steps(x, u0, step, membrane=membrane, channelwise=self.channels is not None)
