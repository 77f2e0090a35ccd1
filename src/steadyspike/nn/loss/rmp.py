"""RMP-Loss (Guo et al., 2023): a penalty on the distance of potentials from the values of their spikes."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from steadyspike.core.reference_scan import per_channel
from steadyspike.nn.loss.loss_term import Pass, Term
from steadyspike.nn.probe import LayerRecord

FORMS = ("distance", "product")


def rmp_loss(
    records: Iterable[LayerRecord], form: str = "distance", power: int = 2, detach_threshold: bool = True
) -> Tensor:
    """Mean over spiking layers of a penalty on M/V, from records with ``m`` and ``spikes`` (and their graph).

    form: ``"distance"``: mean of abs(M/V - sg(S))^power, power 1 or 2; ``"product"``: mean of r^2 (1 - r)^2, r = M/V
    detach_threshold: treat V as a constant, so that the network cannot decrease the penalty by changing V


    The paper's exact penalty is unverified: no official code was found.
    """
    _check(form, power)
    penalties = []
    for record in records:
        if not record.layer.spiking:
            continue
        if record.m is None or record.spikes is None:
            raise ValueError("RMP-Loss needs records of m and spikes: probe(model, record=('m', 'spikes'), graph=True)")
        v = record.layer.threshold.detach() if detach_threshold else record.layer.threshold
        ratio = record.m / per_channel(v, record.m.ndim - 1)
        if form == "product":
            penalties.append((ratio * (1 - ratio)).square().mean())
        else:
            penalties.append((ratio - record.spikes.detach()).abs().pow(power).mean())
    if not penalties:
        raise ValueError("RMP-Loss needs at least one spiking layer")
    return torch.stack(penalties).mean()


def _check(form: str, power: int) -> None:
    if form not in FORMS:
        raise ValueError(f"unknown RMP form {form!r}; known: {', '.join(FORMS)}")
    if power not in (1, 2):
        raise ValueError(f"power must be 1 or 2, got {power}")


def ramp(epoch: int, maximum: float, start: int = 0, length: int = 0) -> float:
    """A weight that is 0 before epoch ``start`` and then rises linearly to ``maximum`` within ``length`` epochs."""
    if epoch < start:
        return 0.0
    return maximum if length <= 0 else maximum * min(1.0, (epoch - start) / length)


class RMP(Term):
    """`rmp_loss` times a weight that can grow over the first epochs (`ramp`). The schedule is unverified."""

    records: tuple[str, ...] = ("m", "spikes")

    def __init__(
        self,
        weight: float = 0.1,
        start: int = 0,
        ramp_epochs: int = 0,
        form: str = "distance",
        power: int = 2,
        detach_threshold: bool = True,
    ) -> None:
        super().__init__()
        _check(form, power)
        self.weight, self.start, self.ramp_epochs = weight, start, ramp_epochs
        self.form, self.power, self.detach_threshold = form, power, detach_threshold

    def forward(self, seen: Pass) -> Tensor:
        weight = ramp(self.epoch, self.weight, self.start, self.ramp_epochs)
        return weight * rmp_loss(seen.records.calls(), self.form, self.power, self.detach_threshold)
