"""MPD-AGL (Jiang et al., 2025): a surrogate whose width follows the spread of the membrane potential."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor

from steadyspike.core.reference_scan import ScanResult, Step, lif_step, per_channel, scan_steps
from steadyspike.core.spec import ScanSpec
from steadyspike.core.surrogate import Rect
from steadyspike.nn.initial_potential import InitialPotential
from steadyspike.nn.lif import LIF
from steadyspike.nn.neurons.scan_options import ScanOptions, Unpack, over


class MPDAGL(LIF):
    """LIF whose surrogate is a rectangle of width 2 s at the first step and 2 s sqrt(1 + r^2) at the others.

    [T, B, ...] -> same.

        s: standard deviation of the input current I;  r = 1 - a: the share of U that is kept per step

    This is the method closest to TrSG: both keep the share of neurons that get a gradient. The authors (IJCAI 2025,
    arXiv 2505.11863) assume that I comes from tdBN with the factor V and take s = V mean(gamma) from its weights. Here
    s is measured on the current itself, which is a departure. It gives the same for equal weights gamma and biases 0,
    and needs no link to the norm. s gets no gradient and belongs to a window, so a stream of single steps has other
    gradients. Published settings: V 0.5, keeps 0.2 of U, unscaled input, hard reset, not detached, gradient of M - V
    ("as"), nothing learned. The forward equals that of a plain LIF.
    """

    PUBLISHED: ClassVar[ScanOptions] = {
        "gradient": "as",
        "surrogate": Rect(1.0),
        "reset": "hard",
        "strict": True,
        "decay_input": False,
    }
    runs_kernel: ClassVar[bool] = True  # without gradients, `run` calls Neuron.run

    def __init__(
        self,
        threshold: float | Sequence[float] = 0.5,
        tau: float | Sequence[float] = 1.25,
        init: str | float | InitialPotential = "zero",
        learn: Sequence[str] | str | bool = (),
        channels: int | None = None,
        **options: Unpack[ScanOptions],
    ) -> None:
        merged = over(self.PUBLISHED, options)
        super().__init__(threshold, tau, init=init, learn=learn, channels=channels, **merged)
        if not isinstance(self.spec.surrogate, Rect) or self.spec.family != "as":
            raise ValueError("MPD-AGL sets the width of a rectangle of M - V: it takes surrogate='rect', gradient='as'")

    def run(self, x: Tensor, u0: Tensor, membrane: bool = False) -> ScanResult:
        if not (torch.is_grad_enabled() and x.requires_grad):
            return super().run(x, u0, membrane)
        dtype = torch.promote_types(x.dtype, torch.float32)
        v, a = (per_channel(p.to(dtype), x.ndim - 1) for p in (self.threshold, self.leak))
        first, later = self._specs(x.detach().to(dtype), self.leak.detach().to(dtype))
        steps = iter([first, *[later] * (x.shape[0] - 1)])

        def step(x_t: Tensor, u: Tensor) -> Step:
            return lif_step(x_t, u, v, a, next(steps))

        return scan_steps(x, u0, step, membrane=membrane, channelwise=self.channels is not None)

    def _specs(self, x: Tensor, a: Tensor) -> tuple[ScanSpec, ScanSpec]:
        """Returns the spec with the surrogate of the first step and of the later ones.

        A constant current keeps the width of 1.
        """
        spread = x.std(correction=0)
        spread = torch.where(spread > 0, spread, torch.full_like(spread, 0.5))
        wider = torch.sqrt(1 + (1 - a.mean()) ** 2)
        one = replace(self.spec, surrogate=Rect(2 * spread))  # type: ignore[arg-type]
        return one, replace(self.spec, surrogate=Rect(2 * spread * wider))  # type: ignore[arg-type]
