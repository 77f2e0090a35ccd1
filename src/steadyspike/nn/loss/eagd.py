"""EAGD (Yang et al., 2025): distillation through hybrids of the spiking network and its ANN teacher.

Hybrid k runs the spiking blocks 1..k. It takes the time mean of their output as a feature map, and passes it through
the teacher's blocks k+1..n. So the gradient reaches block k through these real-valued layers instead of later spikes.

Loss weights, temperature and the mapping between features are unverified: no code was found. EAGD trains with
rate-based backpropagation, here the ``"rate"`` neuron.
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
    """Returns the logits [B, K] of every hybrid.

    features[k]: output [T, B, ...] of the spiking block that corresponds to teacher_blocks[k]
    mappings[k]: maps the time mean of features[k] to the input of teacher_blocks[k + 1]

    There is one of each for every teacher block except the last, which contains the head.
    """
    needed = len(teacher_blocks) - 1
    if not (len(features) == len(mappings) == needed):
        raise ValueError(
            f"{len(teacher_blocks)} teacher blocks need {needed} features and mappings, "
            f"got {len(features)} and {len(mappings)}"
        )
    logits = []
    for k, (feature, mapping) in enumerate(zip(features, mappings)):
        h = mapping(feature.mean(0))
        for block in teacher_blocks[k + 1 :]:
            h = block(h)
        logits.append(h)
    return logits


def eagd_loss(
    logits: Tensor, hybrids: Sequence[Tensor], teacher: Tensor, temperature: float = 1.0, hybrid_weight: float = 1.0
) -> Tensor:
    """KL between the student's time mean and the teacher, plus ``hybrid_weight`` times the hybrids' mean KL to it."""
    teacher = teacher.detach()
    loss = kl_divergence(time_mean(logits), teacher, temperature)
    if hybrids:
        loss = loss + hybrid_weight * torch.stack([kl_divergence(h, teacher, temperature) for h in hybrids]).mean()
    return loss


def channel_mapping(rates: int, features: int) -> nn.Conv2d:
    """A learned 1x1 convolution from rates [B, rates, H, W] to teacher features; it starts near the identity."""
    layer = nn.Conv2d(rates, features, 1)
    nn.init.zeros_(layer.bias)  # type: ignore[arg-type]
    nn.init.dirac_(layer.weight)
    return layer


class EAGD(Term):
    """The distillation term ``weight * eagd_loss``. Add its parameters (the mappings) to the optimizer.

    teacher: the trained ANN, split into consecutive blocks; it is frozen and stays in evaluation mode
    blocks: names of the student's modules whose outputs correspond to teacher[0], ..., teacher[n-2]
    mappings: one module per name, e.g. `channel_mapping`.

    The teacher gets the student's images (`Objective` with ``batch_dim=0``) or the time mean of its frames (1).
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
        self.teacher.eval()  # the hybrids must not change its batch norm statistics
        return self

    def forward(self, seen: Pass) -> Tensor:
        check_batch(seen.x, seen.batch_dim, seen.logits.shape[1])
        answer = seen.x if seen.batch_dim == 0 else seen.x.mean(0)
        with torch.no_grad():
            for block in self.teacher:
                answer = block(answer)
        if answer.shape != seen.logits.shape[1:]:
            expected = list(seen.logits.shape[1:])
            raise ValueError(
                f"the teacher's output has shape {list(answer.shape)}, but the student's has {expected} per time step; "
                "both need the same batch and classes"
            )
        features = [seen.features[name] for name in self.features]
        hybrids = hybrid_logits(features, list(self.teacher), list(self.mappings))
        return self.weight * eagd_loss(seen.logits, hybrids, answer, self.temperature, self.hybrid_weight)
