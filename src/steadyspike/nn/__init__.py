"""Layers, norms, losses and tools for spiking networks. The names listed here are the stable public interface.

`steadyspike.nn.compose` and `steadyspike.nn.loss` have more functions for combining methods.
"""

from steadyspike.core.spec import ScanSpec
from steadyspike.nn.factory import Site
from steadyspike.nn.fused_conv import conv_norm_neuron
from steadyspike.nn.fused_norm import Normed, norm_neuron
from steadyspike.nn.groups import parameter_groups
from steadyspike.nn.initial_potential import ConstantInit, InitialPotential, LearnedInit, MPInit
from steadyspike.nn.lif import LIF
from steadyspike.nn.loss import LOSSES, TERMS, Objective, TaskLoss, Term, make_objective
from steadyspike.nn.membrane_health import HealthError, health
from steadyspike.nn.model_check import Check, CheckReport, check_model
from steadyspike.nn.neuron import Neuron
from steadyspike.nn.neurons import (
    DIET,
    IF,
    LTMD,
    MPBN,
    MPS,
    NEURONS,
    PLIF,
    NeuronSpec,
    RateLIF,
    Readout,
    neuron_factory,
)
from steadyspike.nn.norm import BNTT, NORMS, TAB, TDBN, TEBN, StepBN, StepNorm, TimeNorm, make_norm
from steadyspike.nn.time import Folded, fold_time, repeat_in_time

__all__ = [
    "BNTT",
    "DIET",
    "IF",
    "LIF",
    "LOSSES",
    "LTMD",
    "MPBN",
    "MPS",
    "NEURONS",
    "NORMS",
    "PLIF",
    "TAB",
    "TDBN",
    "TEBN",
    "TERMS",
    "Check",
    "CheckReport",
    "ConstantInit",
    "Folded",
    "HealthError",
    "InitialPotential",
    "LearnedInit",
    "MPInit",
    "Neuron",
    "NeuronSpec",
    "Normed",
    "Objective",
    "RateLIF",
    "Readout",
    "ScanSpec",
    "Site",
    "StepBN",
    "StepNorm",
    "TaskLoss",
    "Term",
    "TimeNorm",
    "check_model",
    "conv_norm_neuron",
    "fold_time",
    "health",
    "make_norm",
    "make_objective",
    "neuron_factory",
    "norm_neuron",
    "parameter_groups",
    "repeat_in_time",
]


def __dir__() -> list[str]:
    return sorted(__all__)
