"""EAGD (Yang et al., 2025): distillation through hybrids of the spiking network and its ANN teacher.

Hybrid k runs the spiking blocks 1..k, takes the time mean of their output as a feature map, and lets the teacher's
blocks k+1..n finish: the teacher's judgement reaches block k through real-valued layers instead of later spikes.

Loss weights, temperature and the mapping between features are unverified: no code was found. Its rate-based training
is the ``"rate"`` neuron.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from steadyspike.nn.loss.kl import kl_divergence
from steadyspike.nn.loss.loss_term import Pass, Term, check_batch
from steadyspike.nn.loss.task import time_mean


def hybrid_logits(
    features: Sequence[Tensor], teacher_blocks: Sequence[nn.Module], mappings: Sequence[nn.Module]
) -> list[Tensor]:
    """Logits [B, K] of every hybrid.

    features[k]: output [T, B, ...] of the spiking counterpart of teacher_blocks[k]; mappings[k]: from its rates to what
    teacher_blocks[k + 1] takes. One of each less than there are teacher blocks: the last block has the head.
    """
    wanted = len(teacher_blocks) - 1
    if not (len(features) == len(mappings) == wanted):
        raise ValueError(
            f"{len(teacher_blocks)} teacher blocks need {wanted} features and mappings, "
            f"got {len(features)} and {len(mappings)}"
        )
    found = []
    for k, (feature, mapping) in enumerate(zip(features, mappings)):
        h = mapping(feature.mean(0))
        for block in teacher_blocks[k + 1 :]:
            h = block(h)
        found.append(h)
    return found


def eagd_loss(
    logits: Tensor, hybrids: Sequence[Tensor], teacher: Tensor, temperature: float = 1.0, hybrid_weight: float = 1.0
) -> Tensor:
    """KL of the student's time mean to the teacher plus ``hybrid_weight`` times the mean KL of the hybrids to it."""
    teacher = teacher.detach()
    loss = kl_divergence(time_mean(logits), teacher, temperature)
    if hybrids:
        loss = loss + hybrid_weight * torch.stack([kl_divergence(h, teacher, temperature) for h in hybrids]).mean()
    return loss


def channel_mapping(rates: int, features: int) -> nn.Conv2d:
    """A learned 1x1 map from rates [B, rates, H, W] to teacher features; starts as the identity where it can."""
    layer = nn.Conv2d(rates, features, 1)
    nn.init.zeros_(layer.bias)  # type: ignore[arg-type]
    nn.init.dirac_(layer.weight)
    return layer


class EAGD(Term):
    """The distillation term: ``weight * eagd_loss``; add its parameters (the mappings) to the optimizer.

    teacher: the trained ANN as consecutive blocks whose composition is the whole network; frozen, in evaluation mode.
    blocks: names of the student's modules whose outputs correspond to teacher[0], ..., teacher[n-2].
    mappings: one module per name, e.g. `channel_mapping`.
    The teacher sees the student's images, or the time mean of its frames, as ``batch_dim`` of the `Objective` says.
    """

    def __init__(
        self,
        teacher: Sequence[nn.Module],
        blocks: Sequence[str],
        mappings: Sequence[nn.Module],
        weight: float = 1.0,
        temperature: float = 1.0,
        hybrid_weight: float = 1.0,
    ) -> None:
        super().__init__()
        if not (len(blocks) == len(mappings) == len(teacher) - 1):
            raise ValueError(
                f"a teacher of {len(teacher)} blocks needs {len(teacher) - 1} student blocks and mappings, "
                f"got {len(blocks)} and {len(mappings)}"
            )
        self.teacher = nn.ModuleList(teacher).requires_grad_(False).eval()
        self.mappings = nn.ModuleList(mappings)
        self.features = tuple(blocks)
        self.weight, self.temperature, self.hybrid_weight = weight, temperature, hybrid_weight

    def train(self, mode: bool = True) -> EAGD:
        super().train(mode)
        self.teacher.eval()  # its batch norm must not learn from hybrids
        return self

    def forward(self, seen: Pass) -> Tensor:
        check_batch(seen.x, seen.batch_dim, seen.logits.shape[1])
        answer = seen.x if seen.batch_dim == 0 else seen.x.mean(0)
        with torch.no_grad():
            for block in self.teacher:
                answer = block(answer)
        if answer.shape != seen.logits.shape[1:]:
            wanted = list(seen.logits.shape[1:])
            raise ValueError(f"the teacher answers with shape {list(answer.shape)}, the student with {wanted} per step")
        features = [seen.features[name] for name in self.features]
        hybrids = hybrid_logits(features, list(self.teacher), list(self.mappings))
        return self.weight * eagd_loss(seen.logits, hybrids, answer, self.temperature, self.hybrid_weight)
