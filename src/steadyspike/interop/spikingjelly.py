"""SpikingJelly 2.0: LIFNode, ParametricLIFNode and IFNode, in single-step ("s") and multi-step ("m") mode.

    SpikingJelly                                         here, with U = v - v_reset and V = v_threshold - v_reset
    h = v + (x - (v - v_reset)) / tau                    M = (1 - a) U + a x,  a = 1/tau
    h = v - (v - v_reset) / tau + x   (decay_input off)  M = (1 - a) U + x
    h = v + x                         (IFNode)           M = U + x
    spike at h >= v_threshold                            S = 1 at M >= V, x = M - V in the surrogate
    v = v_reset where it fired, or h - v_threshold       hard, or soft reset (v_reset is None, rest at 0)
    detach_reset                                         Reset(detach=True)

In mode "m" a call is a window. It starts at rest (with MP-Init at the running mean), so that ``reset_net`` is not
needed. In mode "s" the potential is stored in the memory ``v``, as in SpikingJelly, until ``reset``; a window ends
there.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from steadyspike.core.reference_scan import ScanResult, per_channel, reset
from steadyspike.core.spec import Reset, ScanSpec
from steadyspike.core.surrogate import Sigmoid
from steadyspike.interop.adopted import Adopted
from steadyspike.interop.recognise import number_or_reason
from steadyspike.interop.surrogates import SpikeFunction, from_spikingjelly
from steadyspike.nn.initial_potential import ConstantInit
from steadyspike.nn.native import EveryStep


class SpikingJellyNeuron(Adopted):
    """A converted LIFNode, ParametricLIFNode or IFNode."""

    # Attributes of the original, for the type checker.
    step_mode: str
    v_reset: float | None
    detach_reset: bool
    decay_input: bool
    store_v_seq: bool
    surrogate_function: Any
    v_seq: Tensor | None
    _memories: dict[str, Any]
    _memories_rv: dict[str, Any]

    @property
    def rest(self) -> float:
        return 0.0 if self.v_reset is None else float(self.v_reset)

    def peer_threshold(self) -> float:
        return float(self.__dict__["v_threshold"]) - self.rest

    def peer_leak(self) -> float | Tensor:
        if "tau" in self.__dict__:
            return 1 / float(self.__dict__["tau"])
        w = self._parameters.get("w")
        return 0.0 if w is None else torch.sigmoid(w.to(torch.promote_types(w.dtype, torch.float32)))

    def peer_learns(self, name: str) -> bool:
        w = self._parameters.get("w")
        return name == "leak" and w is not None and w.requires_grad

    @property
    def v_threshold(self) -> float:
        """Returns V as SpikingJelly writes it; the learned value if V is learned."""
        if "threshold" in self._constants:
            return float(self.threshold.detach()) + self.rest
        return self.__dict__["v_threshold"]

    @v_threshold.setter
    def v_threshold(self, value: float) -> None:
        if "threshold" in self._constants:
            self.set_constant("threshold", [float(value) - self.rest])
        else:
            self.__dict__["v_threshold"] = value

    @property
    def tau(self) -> float:
        """Returns tau as SpikingJelly writes it; the learned value if tau is learned."""
        if "leak" in self._constants:
            return float(1 / self.leak.detach())
        if "tau" not in self.__dict__:
            raise AttributeError(f"{type(self).__name__} has no tau")
        return self.__dict__["tau"]

    @tau.setter
    def tau(self, value: float) -> None:
        if "leak" in self._constants:
            self.set_constant("leak", [1 / float(value)])
        else:
            self.__dict__["tau"] = value

    def settings(self) -> tuple[object, ...]:
        function = self.surrogate_function
        constants = (getattr(function, "alpha", None), getattr(function, "spiking", None))
        decay = self.__dict__.get("decay_input", False)
        return id(function), *constants, self.v_reset is None, self.detach_reset, decay

    def read_spec(self) -> tuple[ScanSpec, SpikeFunction | None]:
        kernel = from_spikingjelly(self.surrogate_function)
        kind = "soft" if self.v_reset is None else "hard"
        decay = bool(self.__dict__.get("decay_input", False))
        spec = ScanSpec(self.family, kernel or Sigmoid(0.25), Reset(kind, bool(self.detach_reset)), False, decay)
        name = type(self.surrogate_function).__name__
        return spec, None if kernel is not None else SpikeFunction(name, self.surrogate_function)

    def why_not_learned(self, name: str) -> str | None:
        if name == "tau" and "tau" not in self.__dict__:
            return None if "w" in self._parameters else "IFNode has no leak, so there is no tau to learn"
        return None

    def stabilise(self, family, learn, init, like):  # type: ignore[no-untyped-def]
        # ParametricLIFNode learns 1/tau = sigmoid(w) already, in the paper's form.
        names = [n for n in learn if not (n == "tau" and self._parameters.get("w") is not None)]
        return super().stabilise(family, names, init, like)

    def as_native(self) -> nn.Module:
        layer = super().as_native()
        return layer if self.step_mode == "m" else EveryStep(layer, remembers=True)

    # --- calls -----------------------------------------------------------------------------------------------------

    def forward(self, x: Tensor) -> Tensor:
        if self.step_mode == "m":
            return self.multi_step_forward(x)
        return self.single_step_forward(x)

    def single_step_forward(self, x: Tensor) -> Tensor:
        """Runs one step [B, ...], from the memory ``v`` or, after ``reset``, from the initial potential."""
        result = self.continued(x.reshape(1, *(x.shape or (1,))))
        if self.store_v_seq:
            self._append_v_seq(self._memories["v"])  # type: ignore[operator]
        return result.out[0].reshape(x.shape)

    def multi_step_forward(self, x_seq: Tensor) -> Tensor:
        """Runs a window [T, B, ...]; inside ``with ss.window(model)``, the next part of a window."""
        x = x_seq.reshape(len(x_seq), 1) if x_seq.ndim == 1 else x_seq
        keep = self.store_v_seq
        if self._carries:
            result = self.continued(x, keep)
        elif isinstance(self.init, ConstantInit):
            start = self._memories["v"]  # a number: set by the user, or by a reset
            start = self._memories_rv["v"] if isinstance(start, Tensor) else start
            result = self.advance(x, self.from_memory(start, x), keep)
        else:
            self.close_window()
            result = self.whole(x, keep)
        if keep:
            self.v_seq = self.potentials(result, x)
        if not torch.compiler.is_compiling():
            self._memories["v"] = result.u + self.rest if self.rest else result.u
        return result.out.reshape(x_seq.shape)

    def continued(self, x: Tensor, membrane: bool = False) -> ScanResult:
        """Runs the next steps of the open window; opens one if there is none or the shape has changed."""
        v = self._memories["v"]
        if not (isinstance(v, Tensor) and v.shape == x.shape[1:]):
            self.close_window()
            if isinstance(self.init, ConstantInit):
                u0 = self.from_memory(v, x)
            else:
                u0 = self.init.potential(x)
        else:
            u0 = self.from_memory(v, x)
        result = self.advance(x, u0, membrane)
        self._memories["v"] = result.u + self.rest if self.rest else result.u
        return result

    def from_memory(self, v: float | Tensor, x: Tensor) -> Tensor:
        """Returns U for SpikingJelly's potential ``v``.

        If its shape differs from x[0], a new sequence starts, as in SpikingJelly.
        """
        dtype = torch.promote_types(x.dtype, torch.float32)
        if isinstance(v, Tensor) and v.shape == x.shape[1:]:
            v = v.to(dtype=dtype, device=x.device)
            return v - self.rest if self.rest else v
        start = 0.0 if isinstance(v, Tensor) else float(v) - self.rest
        return torch.full((1,), start, dtype=dtype, device=x.device)

    def potentials(self, result: ScanResult, x: Tensor) -> Tensor:
        """Returns v after the reset at every step, [T, B, ...]: SpikingJelly's v_seq."""
        assert result.m is not None
        v = per_channel(self.threshold.to(result.m.dtype), x.ndim - 1)
        return reset(result.m, self.spikes(result.out).to(result.m.dtype), v, self.spec) + self.rest

    def single_step_functional_forward(
        self, inputs: tuple[Tensor, ...], states: tuple[Any, ...], **kwargs: object
    ) -> tuple[tuple[Tensor, ...], tuple[Any, ...]]:
        """SpikingJelly's explicit-state call, [B, ...]."""
        outputs, states = self.multi_step_functional_forward((inputs[0][None],), states)
        return (outputs[0][0],), states

    def multi_step_functional_forward(
        self, inputs: tuple[Tensor, ...], states: tuple[Any, ...], **kwargs: object
    ) -> tuple[tuple[Tensor, ...], tuple[Any, ...]]:
        """SpikingJelly's explicit-state call, [T, B, ...]."""
        x = inputs[0]
        result = self.advance(x, self.from_memory(states[0], x))
        return (result.out,), (result.u + self.rest, *states[1:])

    def materialize_states(
        self, inputs: tuple[Tensor, ...], states: tuple[Any, ...], step_mode: str
    ) -> tuple[Any, ...]:
        """Returns a starting potential as a tensor; with MP-Init a number is replaced by the running mean."""
        x = inputs[0] if step_mode == "m" else inputs[0][None]
        if isinstance(states[0], Tensor):
            return states
        u0 = self.from_memory(states[0], x) if isinstance(self.init, ConstantInit) else self.init.potential(x)
        return ((u0 + self.rest).expand(x.shape[1:]).clone(), *states[1:])

    # --- the state -------------------------------------------------------------------------------------------------

    def reset(self) -> None:
        """Ends a window: the next call starts from the initial potential. ``functional.reset_net`` calls it."""
        self.close_window()
        self.end_state()

    def end_state(self) -> None:
        self._memories.update(self._memories_rv)
        self.v_seq = None

    def detach(self) -> None:
        """Cuts the graph between earlier and later steps (truncated backpropagation)."""
        v = self._memories["v"]
        if isinstance(v, Tensor):
            self._memories["v"] = v.detach()

    def __getstate__(self) -> dict[str, object]:
        return {**super().__getstate__(), "_memories": dict(self._memories_rv), "v_seq": None}


def why_not(module: Any) -> str | None:
    """Returns why a LIFNode, ParametricLIFNode or IFNode cannot be converted exactly; None if it can."""
    names = tuple(name for name in ("v_threshold", "tau") if hasattr(module, name))
    reason = number_or_reason(module, (*names, *(() if module.v_reset is None else ("v_reset",))))
    if reason is not None:
        return reason
    if list(module._memories) != ["v"]:
        return f"it has the memories {', '.join(module._memories)}, but only v is supported"
    if getattr(module, "_neuron_precision", None) is not None:
        return "it has its own neuron precision"
    if not callable(module.surrogate_function):
        return f"its surrogate_function is {module.surrogate_function!r}"
    return None


def describe(module: Any) -> str:
    """Describes the neuron with all constants, as SpikingJelly names them."""
    function = module.surrogate_function
    shape = function.extra_repr() if hasattr(function, "extra_repr") else ""
    parts = [f"v_threshold={module.v_threshold:g}", f"v_reset={module.v_reset}", f"detach_reset={module.detach_reset}"]
    if "tau" in vars(module):
        parts.insert(0, f"tau={vars(module)['tau']:g}")
    elif "w" in module._parameters:
        parts.insert(0, f"tau={float(1 / module.w.detach().sigmoid()):g} (learned)")
    if "decay_input" in vars(module):
        parts.append(f"decay_input={module.decay_input}")
    parts += [f"{type(function).__name__}({shape})", f"step_mode={module.step_mode!r}"]
    return ", ".join(parts)
