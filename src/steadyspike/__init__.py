"""SteadySpike: stable direct training of spiking neural networks in PyTorch."""

from importlib import import_module
from typing import Any

from steadyspike.core import surrogate
from steadyspike.core.spec import Reset
from steadyspike.core.state import LIFState
from steadyspike.nn.check import CheckReport, check_model
from steadyspike.nn.groups import parameter_groups
from steadyspike.nn.health import HealthError, health
from steadyspike.nn.init import ConstantInit, LearnedInit, MPInit
from steadyspike.nn.lif import LIF

__version__ = "0.1.0"

_PARTS = ("data", "models", "nn", "train")

__all__ = [
    "LIF",
    "CheckReport",
    "ConstantInit",
    "HealthError",
    "LIFState",
    "LearnedInit",
    "MPInit",
    "Reset",
    "__version__",
    "check_model",
    "health",
    "parameter_groups",
    "surrogate",
]


def __getattr__(name: str) -> Any:
    """Larger parts (``ss.models``, ``ss.data``, ...) are imported when they are first used."""
    if name in _PARTS:
        return import_module(f"steadyspike.{name}")
    raise AttributeError(f"module 'steadyspike' has no attribute {name!r}")
