"""SteadySpike: stable direct training of spiking neural networks in PyTorch."""

from steadyspike.core import surrogate
from steadyspike.core.spec import Reset
from steadyspike.core.state import LIFState
from steadyspike.nn.groups import parameter_groups
from steadyspike.nn.init import ConstantInit, LearnedInit, MPInit
from steadyspike.nn.lif import LIF

__version__ = "0.1.0"

__all__ = [
    "LIF",
    "ConstantInit",
    "LIFState",
    "LearnedInit",
    "MPInit",
    "Reset",
    "__version__",
    "parameter_groups",
    "surrogate",
]
