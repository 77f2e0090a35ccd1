"""Spike sparsity (Yan et al., 2022, the spiking part): a penalty on spikes, which saves energy.

The penalty is on S, never on V*S. A network could decrease a penalty on V*S by a smaller V and fire as much as before.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from steadyspike.nn.loss.loss_term import Pass, Term
from steadyspike.nn.probe import LayerRecord

FORMS = ("l1", "l2", "target", "hinge")


def sparsity_loss(records: Iterable[LayerRecord], form: str = "l1", target: float = 0.0) -> Tensor:
    """Mean over spiking layers of a penalty on S, from records with ``rate`` or ``spikes`` (with their graph).

    form, with S in {0, 1} and rate as the layer's firing rate:
        - ``"l1"``: mean(S); every neuron within the surrogate's window gets the same gradient;
        - ``"l2"``: mean(S^2)/2; half the value of "l1", but only neurons that fired get a gradient;
        - ``"target"``: (rate - target)^2;
        - ``"hinge"``: max(0, rate - target)
    The authors' normalisation and coefficients are unverified (no code was found); here everything is a mean.
    """
    _check(form)
    penalties = []
    for record in records:
        if not record.layer.spiking:
            continue
        s = record.spikes if form == "l2" or record.rate is None else record.rate
        if s is None:
            what = "spikes" if form == "l2" else "rate"
            raise ValueError(f"the sparsity loss {form!r} needs records: probe(model, record={what!r}, graph=True)")
        if form == "l2":
            penalties.append(0.5 * s.square().mean())
        elif form == "target":
            penalties.append((s.mean() - target).square())
        elif form == "hinge":
            penalties.append((s.mean() - target).clamp_min(0))
        else:
            penalties.append(s.mean())
    if not penalties:
        raise ValueError("the sparsity loss needs at least one spiking layer")
    return torch.stack(penalties).mean()


def _check(form: str) -> None:
    if form not in FORMS:
        raise ValueError(f"unknown sparsity form {form!r}; known: {', '.join(FORMS)}")


class SpikeRates(NamedTuple):
    """Returns the mean of S of each layer, and over all neurons of the network."""

    layers: dict[str, float]
    overall: float


def spike_rates(records: Mapping[str, LayerRecord]) -> SpikeRates:
    """Returns firing rates from records with ``spikes``; report them for every run with this loss."""
    spikes = {name: r.spikes.detach() for name, r in records.items() if r.spikes is not None}
    total = sum(float(s.double().sum()) for s in spikes.values())
    count = sum(s.numel() for s in spikes.values())
    return SpikeRates({name: float(s.double().mean()) for name, s in spikes.items()}, total / max(count, 1))


class Sparsity(Term):
    """`sparsity_loss` times a weight; vary the weight on a log scale to compare accuracy with firing rate."""

    def __init__(self, weight: float = 0.01, form: str = "l1", target: float = 0.0) -> None:
        super().__init__()
        _check(form)
        self.weight, self.form, self.target = weight, form, target
        self.records = ("spikes",) if form == "l2" else ("rate",)  # a rate costs almost nothing

    def forward(self, seen: Pass) -> Tensor:
        return self.weight * sparsity_loss(seen.records.calls(), self.form, self.target)
