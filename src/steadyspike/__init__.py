"""SteadySpike: stable direct training of spiking neural networks in PyTorch."""

from steadyspike.core import surrogate
from steadyspike.core.spec import Reset
from steadyspike.core.state import LIFState
from steadyspike.nn.check import CheckReport, check_model
from steadyspike.nn.groups import parameter_groups
from steadyspike.nn.health import HealthError, health
from steadyspike.nn.init import ConstantInit, LearnedInit, MPInit
from steadyspike.nn.lif import LIF

__version__ = "0.1.0"

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
