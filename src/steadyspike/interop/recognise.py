"""Decides which modules are neurons of another library, which of them can be converted exactly, and why others cannot.

A class is recognised by the module path and name of the classes it inherits from, so no other library is imported. A
subclass is converted only if it overrides no method of the original class, because changed methods may compute
anything.
"""

from __future__ import annotations

import inspect
from importlib import import_module
from numbers import Real
from typing import NamedTuple

from torch import Tensor, nn

from steadyspike.interop.adopted import OWN, Adopted


class Verdict(NamedTuple):
    """adopter: the class that runs the neuron exactly; None if there is none, with the reason"""

    adopter: type[Adopted] | None
    reason: str = ""


# Supported class -> (our file, our class).
_EXACT = {
    "spikingjelly.activation_based.neuron.lif.LIFNode": ("spikingjelly", "SpikingJellyNeuron"),
    "spikingjelly.activation_based.neuron.plif.ParametricLIFNode": ("spikingjelly", "SpikingJellyNeuron"),
    "spikingjelly.activation_based.neuron.integrate_and_fire.IFNode": ("spikingjelly", "SpikingJellyNeuron"),
    "snntorch._neurons.leaky.Leaky": ("snntorch", "SnnTorchNeuron"),
    "norse.torch.module.lif_box.LIFBoxCell": ("norse", "NorseNeuron"),
    "norse.torch.module.lif.LIFCell": ("norse", "NorseNeuron"),
    "norse.torch.module.lif.LIF": ("norse", "NorseNeuron"),
}
# Base classes of the other libraries' neurons.
_NEURONS = (
    "spikingjelly.activation_based.neuron.",
    "snntorch._neurons.",
    "norse.torch.module.snn.",
    "norse.torch.module.lsnn.",
    "norse.torch.module.izhikevich.",
    "norse.torch.module.leaky_integrator",
)
_STATEFUL = "spikingjelly.activation_based.base.MemoryModule"
# What a subclass may change without changing the dynamics.
_FREE = {
    "__init__", "__new__", "__doc__", "__module__", "__qualname__", "__dict__", "__weakref__", "__annotations__",
    "__annotate__", "__annotate_func__", "__annotations_cache__", "__init_subclass__", "__subclasshook__", "__repr__",
    "__str__", "__firstlineno__", "__static_attributes__", "__parameters__", "__orig_bases__", "__abstractmethods__",
    "_abc_impl", "extra_repr", "_get_name",
}  # fmt: skip
# SpikingJelly's older way to write a neuron. Version 2.0 does not call these methods, but a class that defines one is
# meant to be another neuron.
_OLDER = ("neuronal_charge", "neuronal_fire", "neuronal_reset", "neuronal_adaptation")


def path_of(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def recognise(module: nn.Module) -> Verdict | None:
    """Returns the verdict on a neuron of another library; None for any other module, and for a converted neuron."""
    if isinstance(module, Adopted):
        return None
    paths = [path_of(cls) for cls in type(module).__mro__]
    index = next((i for i, path in enumerate(paths) if path in _EXACT), None)
    if index is None:
        if any(path.startswith(_NEURONS) for path in paths):
            return Verdict(None, f"{type(module).__name__} is not one of the neurons with known dynamics")
        layers = type(module).__module__.startswith("spikingjelly.activation_based.layer")
        if _STATEFUL in paths and not (layers and "Recurrent" not in type(module).__name__):  # Dropout stores a mask
            return Verdict(None, f"{type(module).__name__} keeps its own state; neurons inside it are converted")
        return None
    file, name = _EXACT[paths[index]]
    library = import_module(f"{__package__}.{file}")
    adopter = getattr(library, name)
    cls = type(module).__mro__[index]
    changed = sorted({*changed_methods(module, cls), *taken_names(module, cls, adopter)})
    if changed:
        return Verdict(None, f"{type(module).__name__} has its own {', '.join(changed)}")
    reason = library.why_not(module)
    return Verdict(adopter) if reason is None else Verdict(None, reason)


def changed_methods(module: nn.Module, original: type) -> list[str]:
    """Returns the methods of ``original`` that the module's class, or the module itself, replaces."""
    cls = type(module)
    changed = [
        name
        for name in dir(original)
        if name not in _FREE and inspect.getattr_static(cls, name, None) is not inspect.getattr_static(original, name)
    ]
    changed += [name for name in _OLDER if hasattr(cls, name) and not hasattr(original, name)]
    changed += [name for name in vars(module) if callable(getattr(original, name, None))]
    return sorted(set(changed))


def taken_names(module: nn.Module, original: type, adopter: type[Adopted]) -> list[str]:
    """Returns the names in the adopter that the module's own class or attributes use for something else."""
    ours = {*dir(adopter), *adopter.__annotations__, *OWN} - set(dir(nn.Module)) - _FREE
    classes = type(module).__mro__[: type(module).__mro__.index(original)]
    in_classes = {name for cls in classes for name in vars(cls)}
    return sorted((ours & in_classes) | (vars(module).keys() & {*OWN}) | (module._modules.keys() & {"init"}))


def is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def number_or_reason(module: nn.Module, names: tuple[str, ...]) -> str | None:
    """Returns why an attribute is not the number that it must be; None if all are."""
    for name in names:
        value = getattr(module, name, None)
        if isinstance(value, Tensor):
            return f"{name} is a tensor; set a number, and let ss.stabilize learn it"
        if not is_number(value):
            return f"{name} is {value!r}, not a number"
    return None
