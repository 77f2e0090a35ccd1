"""Replaces converted neurons by plain layers of this library, so that a network can be folded, streamed and exported.

A converted neuron (`ss.convert`, `ss.stabilize`) keeps the interface of its library: one step or many per call, with a
state or without. If its dynamics are those of `LIF` or `IF`, it is replaced here by such a layer. A network that takes
one step per call then gets all steps at once, folded into the batch, and its neurons unfold them. Layers without a
state work on either form.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from functools import partial
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from steadyspike.nn.initial_potential import ConstantInit, MPInit
from steadyspike.nn.lif import LIF
from steadyspike.nn.neuron import Neuron
from steadyspike.nn.neurons import IF

CONTINUES = "its second call continues from the potential of the first; give every call its own neuron"


class NotNative(ValueError):
    """Raised for a converted neuron without an equal layer in this library; the message gives the reason."""


@runtime_checkable
class HasNative(Protocol):
    """A module of another library that a layer of this library can replace."""

    def as_native(self) -> nn.Module:
        """Returns the layer, which is called as the module is called; raises `NotNative` with the reason."""


def plain_layer(source: Neuron, learned: tuple[str, ...]) -> Neuron:
    """Returns `LIF`, or `IF` without leak, with the constants, settings and initial potential of ``source``."""
    v, a = (t.detach().double().reshape(-1) for t in (source.threshold, source.leak))
    if v.numel() > 1 or a.numel() > 1:
        raise NotNative("its constants differ from neuron to neuron")
    # "not ... > 0" is true for NaN too.
    if not float(v) > 0 or not 0 <= float(a) < 1:
        raise NotNative(f"V = {float(v):g} and 1/tau = {float(a):g} are not those of a LIF layer (V > 0, tau > 1)")
    spec, init = source.spec, copy.deepcopy(source.init)
    settings: dict[str, Any] = {"gradient": spec.family, "surrogate": spec.surrogate, "reset": spec.reset}
    names = [name for name in ("threshold", "tau") if name in learned and (name == "threshold" or float(a) > 0)]
    layer: Neuron
    if float(a) == 0:
        layer = IF(float(v), init, names, strict=spec.strict, **settings)
    else:
        layer = LIF(float(v), 1 / float(a), init=init, learn=names, strict=spec.strict, decay_input=spec.decay_input,
                    **settings)  # fmt: skip
    # The constructor made a copy and bound it to its own channels; use the converted neuron's instead.
    layer.init = init
    for name, value in (("threshold", v), ("leak", a)):
        layer.set_constant(name, value)  # tau = 1 / (1 / tau) may be rounded
    return layer.train(source.training)


class Shifted(nn.Module):
    """A layer whose potential is measured from another zero: gain * layer(x + offset)."""

    def __init__(self, layer: nn.Module, offset: float, gain: float) -> None:
        super().__init__()
        self.layer, self.offset, self.gain = layer, offset, gain

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(x + self.offset)
        return out if self.gain == 1 else self.gain * out


def with_late_reset(layer: Neuron) -> nn.Module:
    """Turns a neuron with a soft reset into one that subtracts V after the next decay: M = beta M[t-1] + x - V S[t-1].

    In this form it is U = M - (V / beta) S: a soft reset by V / beta of a neuron that fires at V. If the potential is
    measured from -d with d = V / beta - V, both numbers are V / beta, and the current grows by (1 - beta) d:

        M'[t] = beta U'[t-1] + x[t] + (1 - beta) d,   S = 1 where M' > V / beta,   U' = M' - (V / beta) S
    """
    v, beta = float(layer.threshold.detach().double()), 1 - float(layer.leak.detach().double())
    layer.set_constant("threshold", torch.tensor([v / beta], dtype=torch.float64))
    # Read the value back: the layer's dtype may have rounded V / beta, and d must match the threshold in use.
    d, init = float(layer.threshold.detach().double()) - v, layer.init
    if isinstance(init, ConstantInit):
        layer.init = ConstantInit(_counted_from(torch.tensor(init.value, dtype=torch.float64), v, beta, d).item())
    elif type(init) is MPInit:
        init.running_mean.copy_(_counted_from(init.running_mean.double(), v, beta, d))
    else:
        raise NotNative(
            f"its reset is one step late, which the initial potential {type(init).__name__} does not support"
        )
    # The layer emits (V / beta) S for trsg; times beta this is V S again.
    return Shifted(layer, (1 - beta) * d, beta if layer.spec.family == "trsg" else 1.0)


def _counted_from(start: Tensor, v: float, beta: float, d: float) -> Tensor:
    """Returns U'[0] for a potential M[0]; one above V is reset at the first step."""
    return start + d - (start > v) * (v / beta)


class Returned(nn.Module):
    """A layer instead of a neuron that returns (output, state); the state is None, because the layer stores none."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            raise AttributeError(
                f"the layer that replaces this neuron has no {name!r}: a model that loops over time itself cannot be "
                "written with plain layers; give the part of it that computes one step"
            ) from None

    def forward(self, x: Tensor | tuple[Tensor, Any], *state: Any) -> tuple[Tensor, None]:
        return self.layer(x[0] if isinstance(x, tuple) else x), None


class EveryStep(nn.Module):
    """A layer instead of a neuron that takes one step [B, ...] per call; it gets all steps, [T*B, ...].

    remembers: the neuron object stores its potential, so that a second call in the same step continues from the first
    """

    def __init__(self, layer: nn.Module, remembers: bool) -> None:
        super().__init__()
        self.layer, self.remembers, self.steps, self.calls = layer, remembers, 1, 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        if x.ndim < 1 or len(x) % self.steps:
            raise NotNative("the model does not pass all samples through its neurons at once")
        return self.layer(x.unflatten(0, (self.steps, -1))).flatten(0, 1)


class EveryStepNetwork(nn.Module):
    """Turns a network that takes one step per call into one that takes frames [T, B, ...]."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        layers = [module for module in self.model.modules() if isinstance(module, EveryStep)]
        for layer in layers:
            layer.steps, layer.calls = len(x), 0
        out: Any = self.model(x.flatten(0, 1))
        # A loop over time calls every neuron at least T times, because it takes the folded batch for a sequence.
        if len(x) > 1 and any(layer.calls >= len(x) for layer in layers):
            raise NotNative("the model loops over time itself; give the part of it that computes one step")
        if any(layer.remembers and layer.calls > 1 for layer in layers):
            raise NotNative(f"a neuron is called twice in one step, and {CONTINUES}")
        while isinstance(out, (tuple, list)) and out:
            out = out[0]
        return out.unflatten(0, (len(x), -1))


class OneCallEach:
    """Raises `NotNative` if one forward of ``model`` calls one of the given layers (by name) twice.

    This concerns neurons that continue from their last potential; the plain layers start again at every call.
    """

    def __init__(self, model: nn.Module, names: Iterable[str]) -> None:
        self.calls = dict.fromkeys(names, 0)
        for name in self.calls:
            model.get_submodule(name).register_forward_pre_hook(partial(self.count, name))
        model.register_forward_pre_hook(self.begin, prepend=True)
        model.register_forward_hook(self.end)

    def begin(self, model: nn.Module, args: object) -> None:
        self.calls = dict.fromkeys(self.calls, 0)

    def count(self, name: str, layer: nn.Module, args: object) -> None:
        self.calls[name] += 1

    def end(self, model: nn.Module, args: object, out: object) -> None:
        again = [name for name, calls in self.calls.items() if calls > 1]
        if again:
            raise NotNative(f"{again[0]} is called twice in one forward, and {CONTINUES}")


class FirstOutput(nn.Module):
    """Turns a network that returns (output, state) into one that returns only the output."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        out: Any = self.model(x)
        while isinstance(out, (tuple, list)) and out:
            out = out[0]
        return out


def native(model: nn.Module) -> nn.Module:
    """A copy of ``model`` with layers of this library instead of converted ones; ``model`` itself if it has none."""
    if not any(isinstance(module, HasNative) for module in model.modules()):
        return model
    if isinstance(model, HasNative):
        made = _made(model, "the model itself")
    else:
        made = copy.deepcopy(model)
        made.__dict__.pop("conversion", None)
        _replace(made, "")
    kinds = {type(module) for module in made.modules()}
    if EveryStep in kinds:
        return EveryStepNetwork(made).train(model.training)
    return FirstOutput(made).train(model.training) if Returned in kinds else made


def _replace(module: nn.Module, path: str) -> None:
    for name, child in list(module.named_children()):
        full_name = f"{path}.{name}" if path else name
        if isinstance(child, HasNative):
            setattr(module, name, _made(child, full_name))
        else:
            _replace(child, full_name)


def _made(module: HasNative, path: str) -> nn.Module:
    try:
        return module.as_native()
    except NotNative as error:
        raise NotNative(f"{path}: no plain LIF layer is equal to it: {error}") from None
