"""Losses over time, regularisers and guidance. Each is a function and a small module; `Objective` combines them."""

from steadyspike.nn.loss.eagd import EAGD, channel_mapping, eagd_loss, hybrid_logits
from steadyspike.nn.loss.guidance import Guidance, guidance_loss
from steadyspike.nn.loss.kl import kl_divergence
from steadyspike.nn.loss.loss_term import Pass, Term
from steadyspike.nn.loss.objective import LOSSES, TERMS, Objective, Outcome, collected_outputs, make_objective
from steadyspike.nn.loss.rmp import RMP, ramp, rmp_loss
from steadyspike.nn.loss.sparsity import Sparsity, SpikeRates, sparsity_loss, spike_rates
from steadyspike.nn.loss.task import (
    LTS,
    TET,
    SmoothTET,
    TaskLoss,
    TimeMeanCE,
    last_step,
    last_step_cross_entropy,
    smooth_tet_loss,
    tet_loss,
    time_mean,
    time_mean_cross_entropy,
)
from steadyspike.nn.loss.twin import Twin, twin_loss

__all__ = [
    "EAGD",
    "LOSSES",
    "LTS",
    "RMP",
    "TERMS",
    "TET",
    "Guidance",
    "Objective",
    "Outcome",
    "Pass",
    "SmoothTET",
    "Sparsity",
    "SpikeRates",
    "TaskLoss",
    "Term",
    "TimeMeanCE",
    "Twin",
    "channel_mapping",
    "collected_outputs",
    "eagd_loss",
    "guidance_loss",
    "hybrid_logits",
    "kl_divergence",
    "last_step",
    "last_step_cross_entropy",
    "make_objective",
    "ramp",
    "rmp_loss",
    "smooth_tet_loss",
    "sparsity_loss",
    "spike_rates",
    "tet_loss",
    "time_mean",
    "time_mean_cross_entropy",
    "twin_loss",
]
