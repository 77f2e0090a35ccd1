"""I-LIF (Luo et al., 2024): training emits whole numbers of spikes, which inference unrolls into binary spikes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from steadyspike.core.reference_scan import ScanResult, Step, charge, per_channel, scan_steps
from steadyspike.core.transforms import is_transformed
from steadyspike.nn.initial_potential import InitialPotential
from steadyspike.nn.lif import LIF
from steadyspike.nn.neurons.scan_options import ScanOptions, Unpack, over


class _Count(torch.autograd.Function):
    """Computes round(clip(x, 0, levels)); the gradient passes unchanged for 0 <= x <= levels, both ends included."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, levels: int) -> Tensor:
        ctx.save_for_backward(x)
        ctx.levels = levels
        return x.clamp(0, levels).round()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        return grad * ((x >= 0) & (x <= ctx.levels)).to(grad.dtype), None


def _count(x: Tensor, levels: int) -> Tensor:
    if is_transformed():  # torch.func cannot transform `_Count`; here torch differentiates the clip, with both ends too
        clipped = x.clamp(0, levels)
        return clipped + (clipped.round() - clipped).detach()
    count: Tensor = _Count.apply(x, levels)
    return count


class ILIF(LIF):
    """LIF that emits a count: 0 to ``levels`` spikes per step. [T, B, ...] -> [T, B, ...].

        M[t] = (1 - a) U[t-1] + I[t]
        C[t] = round(clip(M[t] / V, 0, levels))       (rounding half to even, as torch.round)
        U[t] = M[t] - V C[t]

    A linear layer that reads C gives the same as the sum over ``levels`` binary steps of which C have a spike.
    Inference therefore needs accumulates only, and ``levels`` steps instead of one; compare it with a binary neuron of
    levels * T steps. The published settings: levels 4, keeps 0.25 of U, unscaled input, soft reset, V 1 and nothing
    learned. It follows the ECCV 2024 paper (arXiv 2407.20708) as implemented in SpikingJelly's `ILIFNode`; outputs and
    gradients are compared with it. ``gradient`` and ``surrogate`` have no effect: the gradient is that of the clip.
    Streams and MP-Init work as in `LIF`; it cannot be folded.
    """

    PUBLISHED: ClassVar[ScanOptions] = {"gradient": "as", "reset": "soft", "decay_input": False}

    def __init__(
        self,
        levels: int = 4,
        threshold: float | Sequence[float] = 1.0,
        tau: float | Sequence[float] = 4 / 3,
        init: str | float | InitialPotential = "zero",
        learn: Sequence[str] | str | bool = (),
        channels: int | None = None,
        **options: Unpack[ScanOptions],
    ) -> None:
        if isinstance(levels, bool) or not isinstance(levels, int) or levels < 1:
            raise ValueError(f"levels is the most spikes per step and must be a whole number above 0, got {levels!r}")
        merged = over(self.PUBLISHED, options)
        super().__init__(threshold, tau, init=init, learn=learn, channels=channels, **merged)
        if self.spec.reset.kind != "soft":
            raise ValueError("I-LIF subtracts V for every spike of a count, so its reset is 'soft'")
        self.levels = levels

    def run(self, x: Tensor, u0: Tensor, membrane: bool = False) -> ScanResult:
        dtype = torch.promote_types(x.dtype, torch.float32)
        v, a = (per_channel(p.to(dtype), x.ndim - 1) for p in (self.threshold, self.leak))
        detached = self.spec.reset.detach != "none"

        def step(x_t: Tensor, u: Tensor) -> Step:
            m = charge(x_t, u, a, self.spec)
            count = _count(m / v, self.levels)
            return Step(count, count, m, m - v * (count.detach() if detached else count))

        return scan_steps(x, u0, step, membrane=membrane, channelwise=self.channels is not None)

    def extra_repr(self) -> str:
        return f"levels={self.levels}, {super().extra_repr()}"
