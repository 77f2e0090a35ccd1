"""SteadySpike: stable direct training of spiking neural networks in PyTorch.

    import steadyspike as ss
    layer = ss.LIF()                    # learnable threshold and tau, TrSG, MP-Init
    spikes = layer(current)             # [T, B, ...] -> [T, B, ...]; every call starts at U[0], there is no reset

Neurons     LIF, IF, PLIF, LTMD, DIET, MPS, MPBN, RateLIF, Readout; neuron(name) builds one by name
Settings    Reset, surrogate; U[0]: MPInit, ConstantInit, LearnedInit
Check       check_model(model, x), health(model), probe(model), analyse(model, x); plot.raster, plot.traces, plot.rates
Train       parameter_groups(model), make_objective(name), load_run(folder)
Zoo         load("digits-cnn7"), save_pretrained(model, folder), push_to_hub(model, "owner/name"); zoo.names()
Convert     stabilize(model), convert(model), to_native(model), undo(model), window(model): other libraries' models
Deploy      deploy.fold(model, x), stream(model)
Memory      memory_estimate(model, x), save_memory(model), keep_freed_memory(); use_events(model), use_dense(model)
Parts       nn, models, data, train, deploy, interop, analysis, detection, plot, zoo: loaded when they are first used

`steadyspike --help` lists the commands, `steadyspike doctor` the versions, devices and kernels.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from steadyspike.core import surrogate
    from steadyspike.core.heap import keep_freed_memory
    from steadyspike.core.spec import Reset
    from steadyspike.core.state import LIFState
    from steadyspike.nn.event_layers import use_dense, use_events
    from steadyspike.nn.groups import parameter_groups
    from steadyspike.nn.initial_potential import ConstantInit, LearnedInit, MPInit
    from steadyspike.nn.lif import LIF
    from steadyspike.nn.loss import make_objective
    from steadyspike.nn.membrane_health import HealthError, health
    from steadyspike.nn.memory.estimate import memory_estimate
    from steadyspike.nn.memory.pack import save_memory
    from steadyspike.nn.model_check import CheckReport, check_model
    from steadyspike.nn.neurons import DIET, IF, LTMD, MPBN, MPS, PLIF, RateLIF, Readout, neuron
    from steadyspike.nn.probe import probe
    from steadyspike.run_loading import load_run

__version__ = "0.1.0"

_PARTS = ("analysis", "data", "deploy", "detection", "interop", "models", "nn", "plot", "train", "zoo")
_NAMES = {  # module: which of the names below it has
    "core.spec": ("Reset",),
    "core.state": ("LIFState",),
    "nn.event_layers": ("use_dense", "use_events"),
    "nn.groups": ("parameter_groups",),
    "nn.initial_potential": ("ConstantInit", "LearnedInit", "MPInit"),
    "nn.lif": ("LIF",),
    "nn.loss": ("make_objective",),
    "nn.membrane_health": ("HealthError", "health"),
    "nn.memory.estimate": ("memory_estimate",),
    "core.heap": ("keep_freed_memory",),
    "nn.memory.pack": ("save_memory",),
    "nn.model_check": ("CheckReport", "check_model"),
    "nn.neurons": ("DIET", "IF", "LTMD", "MPBN", "MPS", "PLIF", "RateLIF", "Readout", "neuron"),
    "nn.probe": ("probe",),
    "run_loading": ("load_run",),
    "analysis": ("analyse",),
    "deploy": ("stream",),
    "zoo": ("load", "push_to_hub", "save_pretrained"),
    "interop": ("convert", "stabilize", "to_native", "undo", "window"),
}
_WHERE = {name: module for module, names in _NAMES.items() for name in names}

__all__ = [
    "DIET",
    "IF",
    "LIF",
    "LTMD",
    "MPBN",
    "MPS",
    "PLIF",
    "CheckReport",
    "ConstantInit",
    "HealthError",
    "LIFState",
    "LearnedInit",
    "MPInit",
    "RateLIF",
    "Readout",
    "Reset",
    "__version__",
    "analyse",
    "check_model",
    "convert",
    "health",
    "keep_freed_memory",
    "load",
    "load_run",
    "make_objective",
    "memory_estimate",
    "neuron",
    "parameter_groups",
    "probe",
    "push_to_hub",
    "save_memory",
    "save_pretrained",
    "stabilize",
    "stream",
    "surrogate",
    "to_native",
    "undo",
    "use_dense",
    "use_events",
    "window",
]


def __getattr__(name: str) -> Any:
    """Imports a part (``ss.models``, ``ss.data``, ...) or a name when it is first used, and stores it."""
    if name in _PARTS:
        return import_module(f"steadyspike.{name}")
    if name == "surrogate":
        return import_module("steadyspike.core.surrogate")
    if name not in _WHERE:
        raise AttributeError(f"module 'steadyspike' has no attribute {name!r}")
    return globals().setdefault(name, getattr(import_module(f"steadyspike.{_WHERE[name]}"), name))


def __dir__() -> list[str]:
    """Returns the public names and parts, without helpers; completion shows these."""
    return sorted({*__all__, *_PARTS})
