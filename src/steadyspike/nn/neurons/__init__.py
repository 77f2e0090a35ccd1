"""All neuron layers: the paper's LIF, those of other papers, and the table of neurons by name."""

from steadyspike.nn.lif import LIF
from steadyspike.nn.neurons.diet import DIET, percentile_threshold
from steadyspike.nn.neurons.ilif import ILIF
from steadyspike.nn.neurons.integrate import IF
from steadyspike.nn.neurons.ltmd import LTMD
from steadyspike.nn.neurons.mpbn import MPBN, FoldedMPBN
from steadyspike.nn.neurons.mpd import MPDAGL
from steadyspike.nn.neurons.mps import MPS, MPSState
from steadyspike.nn.neurons.neuron_catalogue import (
    NEURONS,
    NeuronInfo,
    NeuronSpec,
    as_neuron,
    imp_shape,
    neuron,
    neuron_factory,
)
from steadyspike.nn.neurons.plif import PLIF
from steadyspike.nn.neurons.rate import RateLIF
from steadyspike.nn.neurons.readout import Readout
from steadyspike.nn.neurons.relu import ReLU

__all__ = [
    "DIET",
    "IF",
    "ILIF",
    "LIF",
    "LTMD",
    "MPBN",
    "MPDAGL",
    "MPS",
    "NEURONS",
    "PLIF",
    "FoldedMPBN",
    "MPSState",
    "NeuronInfo",
    "NeuronSpec",
    "RateLIF",
    "ReLU",
    "Readout",
    "as_neuron",
    "imp_shape",
    "neuron",
    "neuron_factory",
    "percentile_threshold",
]
