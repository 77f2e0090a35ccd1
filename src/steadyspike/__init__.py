"""SteadySpike: stable direct training of spiking neural networks in PyTorch."""

from importlib import import_module
from typing import Any

from steadyspike.core import surrogate
from steadyspike.core.spec import Reset
from steadyspike.core.state import LIFState
from steadyspike.nn.event_layers import use_dense, use_events
from steadyspike.nn.groups import parameter_groups
from steadyspike.nn.initial_potential import ConstantInit, LearnedInit, MPInit
from steadyspike.nn.lif import LIF
from steadyspike.nn.loss import make_objective
from steadyspike.nn.membrane_health import HealthError, health
from steadyspike.nn.memory.estimate import memory_estimate
from steadyspike.nn.memory.heap import keep_freed_memory
from steadyspike.nn.memory.pack import save_memory
from steadyspike.nn.model_check import CheckReport, check_model
from steadyspike.nn.neurons import DIET, IF, LTMD, MPBN, MPS, PLIF, RateLIF, Readout, neuron
from steadyspike.nn.probe import probe
from steadyspike.run_loading import load_run

__version__ = "0.1.0"

_PARTS = ("analysis", "data", "deploy", "detection", "interop", "models", "nn", "plot", "train")
_FROM_PARTS = {
    "analyse": "analysis",
    "stream": "deploy",
    **dict.fromkeys(("convert", "stabilize", "undo", "window"), "interop"),
}

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
    "load_run",
    "make_objective",
    "memory_estimate",
    "neuron",
    "parameter_groups",
    "probe",
    "save_memory",
    "stabilize",
    "stream",
    "surrogate",
    "undo",
    "use_dense",
    "use_events",
    "window",
]


def __getattr__(name: str) -> Any:
    """Larger parts (``ss.models``, ``ss.data``, ...) are imported when they are first used."""
    if name in _PARTS:
        return import_module(f"steadyspike.{name}")
    if name in _FROM_PARTS:
        return getattr(import_module(f"steadyspike.{_FROM_PARTS[name]}"), name)
    raise AttributeError(f"module 'steadyspike' has no attribute {name!r}")
