"""snnTorch 1.0: Leaky with its three resets, delayed by one step or not, and with hidden or explicit state.

    snnTorch                                             the state is ``mem``, the potential before the reset
    R[t] = 1 where mem[t-1] > threshold, detached
    mem[t] = beta mem[t-1] + x[t] - R[t] threshold       "subtract": the full threshold, after the decay
    mem[t] = beta (1 - R[t]) mem[t-1] + x[t]             "zero"
    mem[t] = beta mem[t-1] + x[t]                        "none"
    spike at mem[t] > threshold                          strict

The kernels subtract V before the decay and store the potential after the reset, so these steps run on the reference.
`nn.native.with_late_reset` builds the same neuron with a soft reset, for networks that are folded. Spikes have the
dtype of the input (snnTorch: always float32).

A window starts if the state is new: ``mem=None``, a ``mem`` of another shape, the return value of ``init_leaky`` or
``reset_mem``, or zeros that `snntorch.utils.reset` sets. A stabilised layer starts there at MP-Init's mean.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from steadyspike.core.reference_scan import ScanResult, Step, scan_steps
from steadyspike.core.spec import Reset, ScanSpec
from steadyspike.core.surrogate import ArcTan
from steadyspike.interop.adopted import Adopted
from steadyspike.interop.surrogates import SpikeFunction
from steadyspike.nn.initial_potential import ConstantInit
from steadyspike.nn.native import EveryStep, Returned, with_late_reset
from steadyspike.nn.neuron import Neuron

RESETS = {"subtract": "soft", "zero": "hard", "none": "none"}


class SnnTorchNeuron(Adopted):
    """A converted Leaky."""

    # Attributes of the original, for the type checker.
    spike_grad: Callable[[Tensor], Tensor]
    init_hidden: bool
    output: bool
    reset_delay: bool
    reset_mechanism: str
    graded_spikes_factor: Tensor
    mem: Tensor
    _shown: Tensor | None  # the mem of the last step, to distinguish a state that continues from a new state

    def raw(self, name: str) -> Tensor:
        """Returns snnTorch's own ``threshold`` or ``beta``, a parameter or a buffer."""
        parameter, buffer = self._parameters.get(name), self._buffers.get(name)
        value = buffer if parameter is None else parameter
        assert value is not None
        return value

    def peer_threshold(self) -> Tensor:
        return self.raw("threshold")

    def peer_leak(self) -> Tensor:
        return 1 - self.raw("beta").clamp(0, 1)

    def peer_learns(self, name: str) -> bool:
        return self.raw("threshold" if name == "threshold" else "beta").requires_grad

    @property
    def beta(self) -> Tensor:
        """Returns beta = 1 - 1/tau, in snnTorch's shape."""
        return (1 - self.leak).reshape(self._aside["beta"].shape) if "leak" in self._constants else self.raw("beta")

    def settings(self) -> tuple[object, ...]:
        return id(self.spike_grad), self.reset_mechanism

    def read_spec(self) -> tuple[ScanSpec, SpikeFunction | None]:
        reset = Reset(RESETS[self.reset_mechanism], detach=True)
        spec = ScanSpec(self.family, ArcTan(2.0), reset, strict=True, decay_input=False)
        return spec, SpikeFunction(function_name(self.spike_grad), self.spike_grad)

    def why_no_kernel(self) -> str | None:
        return "snnTorch's reset acts one step later, which the kernels do not support"

    def why_not_learned(self, name: str) -> str | None:
        beta = self.raw("beta")
        if name == "tau" and not bool(((beta > 0) & (beta < 1)).all()):
            return f"beta is {beta.tolist()}, so there is no tau to learn"
        return None

    def why_not_native(self) -> str | None:
        if self.reset_mechanism == "subtract" and not self.reset_delay:
            return "with reset_delay=False it subtracts the threshold again while mem stays above it"
        if self.reset_mechanism == "subtract" and not bool((self.beta.detach() > 0).all()):
            return "with beta = 0 a spike lowers the next step, which a potential cannot represent"
        factor = self.graded_spikes_factor
        return None if float(factor) == 1 else "it has a graded_spikes_factor"

    def as_native(self) -> nn.Module:
        plain = super().as_native()
        assert isinstance(plain, Neuron)
        late = self.reset_mechanism == "subtract" and float(plain.leak.detach()) > 0
        layer = EveryStep(with_late_reset(plain) if late else plain, remembers=self.init_hidden)
        return layer if self.init_hidden and not self.output else Returned(layer)

    def lay_aside(self, name: str) -> None:
        key = "threshold" if name == "threshold" else "beta"
        self._aside[key] = self.raw(key)
        (self._parameters if key in self._parameters else self._buffers).pop(key)

    def constant_in(self, state: dict[str, Any], prefix: str, name: str) -> list[float] | None:
        value = state.pop(f"{prefix}{'threshold' if name == 'threshold' else 'beta'}", None)
        if value is None:
            return None
        value = value.double().reshape(-1)
        return (value if name == "threshold" else 1 - value.clamp(1e-6, 1 - 1e-6)).tolist()

    # --- calls -----------------------------------------------------------------------------------------------------

    def run(self, x: Tensor, u0: Tensor, membrane: bool = False) -> ScanResult:
        """Runs the steps from mem = u0; the result's u is the last mem."""
        dtype = torch.promote_types(x.dtype, torch.float32)
        v = self.threshold.to(dtype)
        v = v.reshape(self._aside["threshold"].shape if "threshold" in self._constants else self.raw("threshold").shape)
        beta = self.beta.clamp(0, 1).to(dtype)
        kind, spec, spike = self.reset_mechanism, self.spec, self.spike_function
        assert spike is not None

        def step(x_t: Tensor, mem: Tensor) -> Step:
            late = spike(mem, v, spec).detach()
            mem = (1 - late) * mem if kind == "zero" else mem
            m = beta * mem + x_t
            m = m - late * v if kind == "subtract" else m
            s = spike(m, v, spec)
            out = v * s if spec.family == "trsg" else s
            if self.reset_delay or kind == "none":
                return Step(out, s, m, m)
            return Step(out, s, m, m - (s - late) * (v if kind == "subtract" else m))

        return scan_steps(x, u0, step, membrane=membrane)

    def forward(  # type: ignore[override]
        self, input_: Tensor, mem: Tensor | None = None
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Runs one step, as in snnTorch: returns (spikes, mem).

        Only spikes if the state is hidden and not requested.
        """
        if mem is not None:
            if self.init_hidden:
                raise TypeError("`mem` should not be passed as an argument while `init_hidden=True`")
            self.mem = mem
        x = input_.reshape(1, *(input_.shape or (1,)))
        result = self.advance(x, self.state_for(x))
        self.mem = result.u.reshape(input_.shape)
        self._shown = self.mem
        factor = self.graded_spikes_factor
        spikes = result.out[0].reshape(input_.shape)
        if factor.requires_grad or float(factor) != 1:
            spikes = spikes * factor
        return (spikes, self.mem) if self.output or not self.init_hidden else spikes

    def state_for(self, x: Tensor) -> Tensor:
        """Returns mem before the step ``x`` [1, B, ...]; opens a window if the state is new."""
        mem, shape = self.mem, x.shape[1:]
        fits = mem.shape == shape or mem.numel() == 1 == shape.numel()
        if isinstance(self.init, ConstantInit):
            return mem.reshape(shape) if fits else torch.zeros(shape, dtype=x.dtype, device=x.device)
        if fits and (mem is self._shown or bool(mem.any())):
            return mem.reshape(shape)
        self.close_window()
        return self.init.potential(x)

    def _count(self, result: ScanResult) -> None:
        """MP-Init needs the potential after the reset, which snnTorch applies in the next step."""
        u, spikes = result.u.detach(), (result.out[-1].detach() != 0).to(result.u.dtype)
        if self.reset_delay and self.reset_mechanism == "subtract":
            v = self.threshold.detach()
            v = v.reshape(-1) if v.numel() > 1 else v
            u = u - spikes * v / self.beta.detach().clamp(1e-6, 1)
        elif self.reset_delay and self.reset_mechanism == "zero":
            u = u * (1 - spikes)
        super()._count(result._replace(u=u))

    # --- the state -------------------------------------------------------------------------------------------------

    def take_over(self) -> None:
        self._shown = None
        super().take_over()

    def give_back(self) -> None:
        super().give_back()
        self.__dict__.pop("_shown", None)

    def reset_mem(self) -> Tensor:
        """Returns zeros, as in snnTorch; they start a window."""
        self.close_window()
        self._shown = None
        self.mem = torch.zeros_like(self.mem)
        return self.mem

    def init_leaky(self) -> Tensor:
        return self.reset_mem()

    def end_state(self) -> None:
        self._shown = None
        self._buffers["mem"] = torch.zeros(0, dtype=self.mem.dtype, device=self.mem.device)

    def __getstate__(self) -> dict[str, object]:
        buffers = {**self._buffers, "mem": torch.zeros(0, dtype=self.mem.dtype, device=self.mem.device)}
        return {**super().__getstate__(), "_buffers": buffers, "_shown": None}


def function_name(function: Any) -> str:
    """Returns ``atan`` for the result of ``snntorch.surrogate.atan()``; otherwise the function's own name."""
    return str(getattr(function, "__qualname__", type(function).__name__)).split(".")[0]


def why_not(module: Any) -> str | None:
    """Returns why a Leaky cannot be converted exactly; None if it can."""
    if module.inhibition:
        return "inhibition lets only one neuron of a layer fire, which this library's dynamics do not support"
    if module.state_quant:
        return "its state is quantised (state_quant)"
    if module.state_function.__func__ is not getattr(type(module), f"_base_{SHORT[module.reset_mechanism]}"):
        return "its state_function was replaced"
    return None


SHORT = {"subtract": "sub", "zero": "zero", "none": "int"}


def describe(module: Any) -> str:
    """Describes the neuron with all constants, as snnTorch names them."""

    def shown(name: str) -> str:
        value = module._parameters.get(name)
        value = module._buffers.get(name) if value is None else value
        if value is None:
            value = module._aside[name]
        learned = " (learned)" if isinstance(value, nn.Parameter) else ""
        return f"{name}={value.item():g}{learned}" if value.numel() == 1 else f"{name}={list(value.shape)}{learned}"

    parts = [shown("beta"), shown("threshold"), f"reset_mechanism={module.reset_mechanism!r}"]
    parts += [
        f"reset_delay={module.reset_delay}",
        function_name(module.spike_grad),
        f"init_hidden={module.init_hidden}",
    ]
    return ", ".join(parts)
