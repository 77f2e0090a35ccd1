"""`Adopted`: a neuron of another library that computes with this library's scan.

`ss.convert` does not replace a module of the user's model. It changes the module's class to one that inherits from
`Adopted` and from the module's original class (`classes.converted_class`). So the object, its parameters, buffers,
name, hooks and training mode do not change, and a ``state_dict`` has the same keys. ``isinstance`` checks of the other
library (recorders, ``reset_net``, ``set_step_mode``) still recognise it. `Adopted.give_back` restores the original
class.

A converted neuron reads its constants from the other library's attributes at every call. A stabilised one also has
learned constants (`nn.constants`) and MP-Init.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from steadyspike.core.reference_scan import ScanResult, Step, active_statistics, charge, per_channel, reset, scan_steps
from steadyspike.core.spec import ScanSpec
from steadyspike.interop.classes import Converted
from steadyspike.interop.surrogates import SpikeFunction
from steadyspike.nn.checkpoint import recomputing
from steadyspike.nn.initial_potential import ConstantInit, InitialPotential, resolve_init
from steadyspike.nn.native import NotNative, plain_layer
from steadyspike.nn.neuron import Neuron
from steadyspike.nn.parametrization import SIGMOID, SOFTPLUS

# Attributes that an adopted module has and the original does not; `give_back` removes them.
OWN = ("_constants", "spec", "backend", "channels", "taps", "family", "spike_function", "_seen", "_fired", "_last",
       "_carries", "_aside", "_device", "stream_window")  # fmt: skip


class Adopted(Converted, Neuron):
    """Base class of converted neurons. Each subclass implements the attributes and the calls of one library's neurons.

    family: the gradient family, "as" after `convert`
    spike_function: the other library's spike function, for the reference; None if the kernels support it
    """

    LEARNABLE: ClassVar[tuple[str, ...]] = ("threshold", "tau")
    runs_kernel: ClassVar[bool] = True
    family: str
    spike_function: SpikeFunction | None

    # --- what a subclass defines about the other library's neuron
    # ------------------------------------------------------

    def peer_threshold(self) -> float | Tensor:
        """Returns V above the resting potential, from the other library's attributes."""
        raise NotImplementedError

    def peer_leak(self) -> float | Tensor:
        """Returns a = 1/tau, from the other library's attributes."""
        raise NotImplementedError

    def peer_learns(self, name: str) -> bool:
        """Returns True if the other library trains its ``"threshold"`` or ``"leak"``."""
        return False

    def settings(self) -> tuple[object, ...]:
        """Returns everything that `read_spec` depends on; a change takes effect at the next forward."""
        raise NotImplementedError

    def read_spec(self) -> tuple[ScanSpec, SpikeFunction | None]:
        """Returns the settings of the scan, from the other library's attributes."""
        raise NotImplementedError

    def end_state(self) -> None:
        """Deletes the state that the other library's attributes hold."""

    def why_not_learned(self, name: str) -> str | None:
        """Returns why ``"threshold"`` or ``"tau"`` cannot become a parameter of this library; None if it can."""
        return None

    # --- converting and restoring ----------------------------------------------------------------------------------

    def take_over(self) -> None:
        """Called once, after the class was changed."""
        self._constants = {}
        self.backend, self.channels, self.family = "auto", None, "as"
        self.taps = {}
        self._fired: Tensor | None = None  # neurons that fired in the open window, if statistics are collected
        self._last: Tensor | None = None  # potential after the last step of the open window
        self._carries = False  # True inside ``with ss.window(model)``
        self._device = torch.device("cpu")  # device of the last input
        self._aside: dict[str, Tensor] = {}  # parameters of the original that the learned constants replace
        self._modules["init"] = resolve_init("zero", None).train(self.training)
        self._seen: tuple[object, ...] = ()
        self.refresh()

    def give_back(self) -> None:
        """Restores the original module, with the constants that it had.

        A sequence that has begun continues if V is unchanged.
        """
        if self.stabilised:
            self.end_state()
        for name, constant in self._constants.items():
            self._buffers.pop(f"fixed_{name}", None)
            if constant.raw is not None:
                self._parameters.pop(constant.raw, None)
        for name, value in self._aside.items():
            registry = self._parameters if isinstance(value, nn.Parameter) else self._buffers
            registry[name] = value  # type: ignore[assignment]
        del self._modules["init"]
        for name in OWN:
            self.__dict__.pop(name, None)
        super().give_back()

    def stabilise(self, family: str, learn: Sequence[str], init: InitialPotential, like: Tensor) -> list[str]:
        """Turns on a gradient family, learned constants and an initial potential; returns what could not be done."""
        notes = []
        if family != "as" and not bool((self.threshold > 0).all()):
            return [f"gradient {family!r} and a learned V need V > 0 above rest, and V is {self.threshold.tolist()}"]
        for name, constant, raw, link in (("threshold", "threshold", "k", SOFTPLUS), ("tau", "leak", "w", SIGMOID)):
            if name not in learn or constant in self._constants:
                continue
            reason = self.why_not_learned(name)
            if reason is not None:
                notes.append(reason)
                continue
            values = (self.threshold if name == "threshold" else self.leak).detach().double().tolist()
            self.lay_aside(name)
            self.add_constant(constant, raw, link, values, learned=True)
            dtype = torch.promote_types(like.dtype, torch.float32)
            self._parameters[raw] = nn.Parameter(link.nearest(values, dtype).to(like.device))
        self.family = family
        self._modules["init"] = resolve_init(init, None).to(like.device).train(self.training)
        self.end_state()
        self.refresh()
        return notes

    def lay_aside(self, name: str) -> None:
        """Removes the other library's parameter of a constant until `give_back`.

        This library's parameter replaces it.
        """

    def refresh(self) -> None:
        """Reads the settings again if the other library's attributes have changed."""
        if torch.compiler.is_compiling():
            return
        seen = (self.family, *self.settings())
        if seen != self._seen:
            self._seen = seen
            self.spec, self.spike_function = self.read_spec()

    def why_not_native(self) -> str | None:
        """Returns why the dynamics are not those of a plain LIF layer; None if they are."""
        return None

    def as_native(self) -> nn.Module:
        """Returns a layer of this library with the same dynamics, which is called in the same way (`nn.native`)."""
        reason = self.why_not_native()
        if reason is not None:
            raise NotNative(reason)
        self.refresh()
        return plain_layer(self, self.learned)

    # --- the neuron ------------------------------------------------------------------------------------------------

    @property
    def init(self) -> InitialPotential:  # type: ignore[override]
        """Returns the initial potential, above rest.

        This is a property, because the other library's class may have an attribute ``init`` too.
        """
        own_init = self._modules["init"]
        assert isinstance(own_init, InitialPotential)
        return own_init

    @property
    def stabilised(self) -> bool:
        return self.family != "as" or bool(self._constants) or not isinstance(self.init, ConstantInit)

    @property
    def threshold(self) -> Tensor:
        """Returns V above the resting potential, [1]."""
        return (
            self.constant("threshold") if "threshold" in self._constants else as_constant(self, self.peer_threshold())
        )

    @property
    def leak(self) -> Tensor:
        """a = 1/tau, [1]."""
        return self.constant("leak") if "leak" in self._constants else as_constant(self, self.peer_leak())

    def is_learned(self, name: str) -> bool:
        if name in self._constants:
            return super().is_learned(name)
        return self.peer_learns(name)

    @property
    def threshold_name(self) -> str | None:
        return super().threshold_name if "threshold" in self._constants else None

    def why_no_kernel(self) -> str | None:
        if self.spike_function is not None:
            return f"the kernels do not have the surrogate {self.spike_function.name}"
        return super().why_no_kernel()

    def run(self, x: Tensor, u0: Tensor, membrane: bool = False) -> ScanResult:
        if self.spike_function is None:
            return super().run(x, u0, membrane)
        dtype = torch.promote_types(x.dtype, torch.float32)
        v, a = (per_channel(p.to(dtype), x.ndim - 1) for p in (self.threshold, self.leak))
        spike, spec = self.spike_function, self.spec

        def step(x_t: Tensor, u: Tensor) -> Step:
            m = charge(x_t, u, a, spec)
            s = spike(m, v, spec)
            return Step(v * s if spec.family == "trsg" else s, s, m, reset(m, s, v, spec))

        return scan_steps(x, u0, step, membrane=membrane)

    def prepare(self, x: Tensor) -> None:
        """Checks the input, reads the settings and keeps learned constants in range; every forward starts with it."""
        self.refresh()
        self.check_input(x)
        if x.device != self._device:
            self._device = x.device
        if self.training:
            self.limit_constants()

    def advance(self, x: Tensor, u0: Tensor, membrane: bool = False) -> ScanResult:
        """Runs the steps ``x`` [T, B, ...] from U = u0, passes them to the taps and counts them for the statistics."""
        self.prepare(x)
        result = self._observed(x, u0, membrane)
        if self.training and not isinstance(self.init, ConstantInit) and not recomputing():
            self._count(result)
        return result

    def whole(self, x: Tensor, membrane: bool = False) -> ScanResult:
        """Runs a whole window ``x`` [T, B, ...] from the initial potential; updates the statistics of MP-Init."""
        self.prepare(x)
        u0 = self.init.potential(x)
        result = self._observed(x, u0, membrane)
        if self.training:
            self.init.update(result.active)
        return result

    def _observed(self, x: Tensor, u0: Tensor, membrane: bool) -> ScanResult:
        """Calls `run` and passes the result to the taps; sets result.m if ``membrane`` is set or a tap requests it."""
        if not self.taps:
            return self.run(x, u0, membrane)
        needed = membrane
        return self.watched_run(x, u0, lambda x, u0, membrane: self.run(x, u0, membrane or needed))

    def _count(self, result: ScanResult) -> None:
        fired = (result.out.detach() != 0).any(0)
        self._fired = fired if self._fired is None else self._fired | fired
        self._last = result.u.detach()

    def close_window(self) -> None:
        """Updates MP-Init's statistics from the steps since the last call. This ends a window."""
        fired, last = self._fired, self._last
        self._fired = self._last = None
        if fired is not None and last is not None:
            self.init.update(active_statistics(last, fired, False))

    def scan(self, x: Tensor, state: Any = None) -> Any:
        raise RuntimeError("a converted neuron is streamed in the way of its own library; see ss.window")

    # --- copies and checkpoints ------------------------------------------------------------------------------------

    def __getstate__(self) -> dict[str, object]:
        """Copies and pickles contain no taps and no open window."""
        return {**self.__dict__, "taps": {}, "_fired": None, "_last": None, "_carries": False}

    @torch.no_grad()
    def _load_from_state_dict(self, state: dict[str, Any], prefix: str, *rest: Any) -> None:
        """Loads a state of the original model too: constants and statistics that it does not have stay unchanged."""
        self.end_state()
        own = {f"{prefix}{constant.raw}": name for name, constant in self._constants.items()}
        statistics = {f"{prefix}init.{name}": value for name, value in self.init.state_dict().items()}
        given = {key: self.constant_in(state, prefix, name) for key, name in own.items()}
        if not any(key in state for key in (*own, *(f"{prefix}fixed_{name}" for name in own.values()), *statistics)):
            for key, name in own.items():
                parameter, values = self.constant_parameter(name), given[key]
                assert parameter is not None
                link = self._constants[name].link
                state[key] = parameter.detach() if values is None else link.nearest(values, parameter.dtype)
            state.update(statistics)
        super()._load_from_state_dict(state, prefix, *rest)

    def constant_in(self, state: dict[str, Any], prefix: str, name: str) -> list[float] | None:
        """Removes a constant's value from an original neuron's state and returns it; None if the state has none."""
        return None

    def extra_repr(self) -> str:
        """V (above rest), tau and every setting of the scan."""
        text = super().extra_repr()
        if not self._constants:
            text = f"{self._constants_repr()}, learn={self.learned}, {text}"
        if self.spike_function is not None:
            text = text.replace(f"surrogate={self.spec.surrogate}", f"surrogate={self.spike_function.name}")
        return f"{text}, init={self.init}"


def as_constant(module: Adopted, value: float | Tensor) -> Tensor:
    """Returns a number, on the device of the last input, or a tensor, as [1] or [C] in float32 or better."""
    if isinstance(value, Tensor):
        value = value.reshape(-1) if value.ndim != 1 else value
        return value.to(torch.promote_types(value.dtype, torch.float32))
    return torch.full((1,), value, dtype=torch.float64, device=module._device)
