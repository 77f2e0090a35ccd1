"""Norse 1.1: LIFBoxCell, LIFCell and LIF, alone, in a SequentialState or under Lift.

    Norse                                                here, with U = v - v_leak and V = v_th - v_leak
    v' = v + dt tau_mem_inv (i + v_leak - v)             M = (1 - a) U + a i,  a = dt tau_mem_inv
    spike at v' > v_th                                   S = 1 at M > V (strict), x = M - V in the surrogate
    v = (1 - z) v' + z v_reset                           hard reset, not detached
    v = v' - z v_th   (reset_subtract)                   soft reset

LIFBoxCell: i is the input. LIFCell and LIF add a synapse, i[t] = (1 - dt tau_syn_inv) i[t-1] + x[t]. This is a filter
of the input that spikes do not change, so it is computed before the scan. A v_reset other than v_leak, or a v_leak
other than 0 with reset_subtract, runs on the reference.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from steadyspike.core.reference_scan import ScanResult, Step, charge, scan_steps
from steadyspike.core.spec import Reset, ScanSpec
from steadyspike.core.surrogate import Sigmoid, Surrogate, Triangle
from steadyspike.interop.adopted import Adopted
from steadyspike.interop.classes import Converted, converted_class
from steadyspike.interop.surrogates import SpikeFunction
from steadyspike.nn.native import EveryStep, Returned

FUNCTIONS = "norse.torch.functional."


class NorseNeuron(Adopted):
    """A converted LIFBoxCell, LIFCell (one step per call) or LIF (a sequence per call)."""

    runs_kernel: ClassVar[bool] = True

    # Attributes of the original, for the type checker.
    p: Any
    dt: float

    def peer_threshold(self) -> Tensor:
        return torch.as_tensor(self.p.v_th) - torch.as_tensor(self.p.v_leak)

    def peer_leak(self) -> Tensor:
        return self.dt * torch.as_tensor(self.p.tau_mem_inv)

    def peer_learns(self, name: str) -> bool:
        parts = ("v_th", "v_leak") if name == "threshold" else ("tau_mem_inv",)
        return any(isinstance(v := getattr(self.p, part), Tensor) and v.requires_grad for part in parts)

    @property
    def rest(self) -> Tensor:
        return torch.as_tensor(self.p.v_leak)

    @property
    def subtracts(self) -> bool:
        return getattr(getattr(self.p, "reset_method", None), "__name__", "") == "reset_subtract"

    def settings(self) -> tuple[object, ...]:
        p = self.p
        same = bool(self.rest == (0 if self.subtracts else torch.as_tensor(p.v_reset)))
        return p.method, float(torch.as_tensor(p.alpha).detach()), self.subtracts, same

    def read_spec(self) -> tuple[ScanSpec, SpikeFunction | None]:
        method, alpha, subtracts, same = self.settings()
        assert isinstance(method, str) and isinstance(alpha, float)
        kernel = kernel_surrogate(method, alpha)
        reset = Reset("soft" if subtracts else "hard")
        spec = ScanSpec(self.family, kernel or Triangle(), reset, strict=True, decay_input=True)
        self._resets_to_rest = bool(same)
        return spec, None if kernel is not None and same else SpikeFunction(method, NorseSpike(method, alpha))

    def why_no_kernel(self) -> str | None:
        if not self._resets_to_rest:
            return "v_reset differs from v_leak" if not self.subtracts else "reset_subtract with a v_leak other than 0"
        return super().why_no_kernel()

    def stabilise(self, family, learn, init, like):  # type: ignore[no-untyped-def]
        if not self._resets_to_rest:
            return [f"not stabilised: {self.why_no_kernel()}, and a learned V counts from rest"]
        return super().stabilise(family, learn, init, like)

    def why_not_native(self) -> str | None:
        if hasattr(self.p, "tau_syn_inv"):
            return "it filters its input by a synapse (LIFBoxCell has none)"
        return None if self._resets_to_rest else self.why_no_kernel()

    def as_native(self) -> nn.Module:
        layer = super().as_native()
        many = any(cls.__name__ == "SNN" for cls in self.original.__mro__)
        return Returned(layer if many else EveryStep(layer, remembers=False))

    def why_not_learned(self, name: str) -> str | None:
        leak = float(self.leak.detach())
        if name == "tau" and not 0 < leak < 1:
            return f"dt * tau_mem_inv is {leak:g}, and a learned one is between 0 and 1"
        return None

    def run(self, x: Tensor, u0: Tensor, membrane: bool = False) -> ScanResult:
        if self._resets_to_rest or self.spike_function is None:
            return super().run(x, u0, membrane)
        dtype = torch.promote_types(x.dtype, torch.float32)
        v, a, spike = self.threshold.to(dtype), self.leak.to(dtype), self.spike_function
        amount = torch.as_tensor(self.p.v_th).to(dtype)
        target = (torch.as_tensor(self.p.v_reset) - self.rest).to(dtype)

        def step(x_t: Tensor, u: Tensor) -> Step:
            m = charge(x_t, u, a, self.spec)
            s = spike(m, v, self.spec)
            return Step(s, s, m, m - s * amount if self.subtracts else (1 - s) * m + s * target)

        return scan_steps(x, u0, step, membrane=membrane)

    # --- calls -----------------------------------------------------------------------------------------------------

    def forward(self, input_tensor: Tensor, state: Any = None) -> tuple[Tensor, Any]:  # type: ignore[override]
        """One step (a cell) or a sequence [T, ...] (LIF), as in Norse: (spikes, state)."""
        if any(cls.__name__ == "SNN" for cls in self.original.__mro__):
            return self.sequence(input_tensor, state)
        x = input_tensor.reshape(1, *(input_tensor.shape or (1,)))
        out, state = self.sequence(x, state)
        return out[0].reshape(input_tensor.shape), state

    def sequence(self, x: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        """Runs the steps ``x`` [T, ...] from a state of Norse, or from the initial potential."""
        current, synapse = self.filtered(x, state)
        current = current.reshape(len(x), 1) if current.ndim == 1 else current
        if state is None:
            self.close_window()
            u0 = self.init.potential(current)
        else:
            u0 = (state.v - self.rest).to(torch.promote_types(x.dtype, torch.float32))
            u0 = u0.expand(current.shape[1:]) if u0.ndim < current.ndim - 1 else u0
        result = self.advance(current, u0)
        return result.out.reshape(x.shape), self.state_of(result.u.reshape(x.shape[1:]) + self.rest, synapse)

    def filtered(self, x: Tensor, state: Any) -> tuple[Tensor, Tensor | None]:
        """The current into the membrane at every step, and the synapse's state after the last; LIFBoxCell: x, None."""
        if not hasattr(self.p, "tau_syn_inv"):
            return x, None
        i = torch.zeros_like(x[0]) if state is None else state.i
        kept, steps = 1 - self.dt * torch.as_tensor(self.p.tau_syn_inv), []
        for x_t in x:
            i_new = i + x_t
            steps.append(i_new)
            i = kept * i_new
        return torch.stack(steps), i

    def state_of(self, v: Tensor, synapse: Tensor | None) -> Any:
        if synapse is None:
            from norse.torch.functional.lif_box import LIFBoxFeedForwardState

            return LIFBoxFeedForwardState(v=v)
        from norse.torch.functional.lif import LIFFeedForwardState

        return LIFFeedForwardState(v=v, i=synapse)

    def give_back(self) -> None:
        super().give_back()
        self.__dict__.pop("_resets_to_rest", None)


class ScannedLift(Converted):
    """Norse's Lift of a converted cell: one scan over the sequence instead of a loop over its steps."""

    lifted_module: NorseNeuron

    def as_native(self) -> nn.Module:
        return Returned(Adopted.as_native(self.lifted_module))

    def forward(self, x: Tensor | tuple[Tensor, Any]) -> tuple[Tensor, Any]:
        x, state = x if isinstance(x, tuple) else (x, None)
        return self.lifted_module.sequence(x, state)


class NorseSpike:
    """Norse's threshold function for a method and an alpha. It is a class, so that it can be pickled."""

    def __init__(self, method: str, alpha: float) -> None:
        self.method, self.alpha = method, alpha

    def __call__(self, x: Tensor) -> Tensor:
        from norse.torch.functional.threshold import threshold

        return threshold(x, self.method, self.alpha)


def kernel_surrogate(method: str, alpha: float) -> Surrogate | None:
    """Returns the kernels' surrogate that equals a method of Norse; None if there is none."""
    if method == "triangle":  # alpha max(0, 1 - |x|)
        return Triangle(width=1.0, scale=alpha)
    if method == "tanh":  # 1 - tanh(alpha x)^2 = 4 s (1 - s) with s = sigmoid(2 alpha x)
        return Sigmoid(width=0.5 / alpha, scale=2 / alpha)
    return None


def why_not(module: Any) -> str | None:
    """Returns why a LIFBoxCell, LIFCell or LIF cannot be converted exactly; None if it can."""
    p = module.p
    for name in ("tau_mem_inv", "tau_syn_inv", "v_leak", "v_th", "v_reset", "alpha"):
        if torch.as_tensor(getattr(p, name, 0.0)).numel() != 1:
            return f"its {name} has one value per neuron"
    if p.method in ("adjoint", "logistic", "circ_dist"):
        return f"its method is {p.method!r}"
    activation = f"{module.activation.__module__}.{module.activation.__name__}"
    if activation not in (f"{FUNCTIONS}lif_box.lif_box_feed_forward_step", f"{FUNCTIONS}lif.lif_feed_forward_step"):
        return f"its activation is {activation}"
    if getattr(module.state_fallback, "__func__", None) is not type(module).initial_state:
        return "its state_fallback was replaced"
    method = getattr(p, "reset_method", None)
    if method is not None and f"{method.__module__}.{method.__name__}" not in (
        f"{FUNCTIONS}reset.reset_value",
        f"{FUNCTIONS}reset.reset_subtract",
    ):
        return f"its reset_method is {method!r}"
    if getattr(module, "record_states", False):
        return "it records its states (record_states=True)"
    return None


def describe(module: Any) -> str:
    """Describes the neuron with all constants, as Norse names them."""
    shown = [f"{name}={value.item():g}" if isinstance(value, Tensor) and value.numel() == 1 else f"{name}={value}"
             for name, value in module.p._asdict().items() if not callable(value)]  # fmt: skip
    method = getattr(module.p, "reset_method", None)
    shown += [] if method is None else [f"reset_method={method.__name__}"]
    return ", ".join([*shown, f"dt={module.dt:g}"])


def lift(module: nn.Module) -> bool:
    """Makes a Lift of a converted cell scan it; False if ``module`` is not one."""
    cls = type(module)
    plain = f"{cls.__module__}.{cls.__qualname__}" == "norse.torch.module.lift.Lift" and "forward" not in vars(module)
    if not plain or not isinstance(module.lifted_module, NorseNeuron):
        return False
    module.__class__ = converted_class(cls, ScannedLift)
    return True
