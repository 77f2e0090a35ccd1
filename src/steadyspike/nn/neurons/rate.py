"""Rate-based backpropagation (Yu et al., 2024): a neuron whose backward uses firing rates and does not go through time.

EAGD trains with it.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from steadyspike.core.reference_scan import ScanResult, Step, charge, per_channel, reset, scan_steps, spike
from steadyspike.core.spec import Reset, ScanSpec
from steadyspike.core.surrogate import Sigmoid
from steadyspike.nn.initial_potential import InitialPotential, LearnedInit
from steadyspike.nn.neuron import Neuron
from steadyspike.nn.neurons.scan_options import ScanOptions, Unpack, as_spec, check_retention, over
from steadyspike.nn.parametrization import RAW, SOFTPLUS


def local_derivatives(m: Tensor, s: Tensor, v: Tensor, spec: ScanSpec) -> tuple[Tensor, Tensor]:
    """DS/dM and dU/dM of one step at M = ``m``, S = ``s`` [B, ...], as autograd computes them for the reference."""
    ds = spec.surrogate.derivative(m - v) if spec.family == "as" else spec.surrogate.derivative(m / v - 1) / v
    kept = 1 - s if spec.reset.kind == "hard" else torch.ones_like(m)
    if spec.reset.kind == "none" or spec.reset.detach != "none":
        return ds, kept
    return ds, kept - (m if spec.reset.kind == "hard" else v) * ds


class RateLIF(Neuron):
    """LIF whose backward pass uses time averages only: d mean(O) / d mean(I) = e, the mean eligibility.

        eps[1] = 1,  eps[t+1] = 1 + (1 - a) dU/dM[t] eps[t]           (decay_input: a instead of 1)
        e = mean over t of dS/dM[t] eps[t]
        O[t] = S[t] in the forward;  dL/dI[t] = e / T * sum over t' of dL/dO[t']

    Nothing of size T is kept for the backward pass, so its memory and time are those of one step. This is exact
    rate-based backpropagation if the layers between neurons are linear and the same at every step, and the loss is on
    the time mean. A batch norm in between is differentiated at each step's own values.

    Gradients are T times those of the authors' code, which divides the gradient of the loss by T. With their learning
    rates use ``make_objective("ce", per_step=True)``.

    V and the leak are fixed, because they get no gradient here. For the same reason a learned U[0] (IMP) raises an
    error. The defaults are those of the authors' ImageNet runs: retention 0.2, V 1, detached soft reset, sigmoid
    gradient "as".
    """

    PUBLISHED: ClassVar[ScanOptions] = {
        "gradient": "as",
        "surrogate": Sigmoid(0.25),
        "reset": Reset("soft", detach=True),
        "decay_input": False,
    }
    runs_kernel: ClassVar[bool] = True  # without gradients, `run` calls Neuron.run

    def __init__(
        self,
        threshold: float = 1.0,
        retention: float = 0.2,
        init: str | float | InitialPotential = "zero",
        channels: int | None = None,
        **options: Unpack[ScanOptions],
    ) -> None:
        if isinstance(init, LearnedInit):
            raise ValueError("rate-based backpropagation has no gradient to U[0], so a learned U[0] would never train")
        merged = over(self.PUBLISHED, options)
        retention = check_retention(retention, merged)
        super().__init__(as_spec(merged), init, channels, merged.get("backend", "auto"))
        self.add_constant("threshold", None, SOFTPLUS, [float(threshold)], learned=False)
        self.add_constant("leak", None, RAW, [1 - retention], learned=False)

    def run(self, x: Tensor, u0: Tensor, membrane: bool = False) -> ScanResult:
        if not (torch.is_grad_enabled() and x.requires_grad):
            return super().run(x, u0, membrane)
        spec = self.spec
        dtype = torch.promote_types(x.dtype, torch.float32)
        v, a = (per_channel(p.to(dtype), x.ndim - 1) for p in (self.threshold, self.leak))
        entry = a if spec.decay_input else torch.ones_like(a)
        # eps is dM[t]/dx for a constant x: through U[t-1] it collects the contributions of earlier steps.
        eps, total = entry, torch.zeros((), dtype=dtype, device=x.device)

        def step(x_t: Tensor, u: Tensor) -> Step:
            nonlocal eps, total
            m = charge(x_t, u, a, spec)
            s = spike(m, v, spec)
            ds, du = local_derivatives(m, s, v, spec)
            total = total + eps * ds
            eps = entry + (1 - a) * du * eps
            return Step(v * s if spec.family == "trsg" else s, s, m, reset(m, s, v, spec))

        with torch.no_grad():
            result = scan_steps(x, u0, step, membrane=membrane, channelwise=self.channels is not None)
        e = total / x.shape[0] * (v if spec.family == "trsg" else 1.0)
        # The value is 0 and the gradient e / T for every step: the output keeps its spikes, and the backward uses only
        # the time mean.
        proxy = (x.mean(0).to(dtype) * e).to(x.dtype)
        return result._replace(out=result.out + (proxy - proxy.detach()))
