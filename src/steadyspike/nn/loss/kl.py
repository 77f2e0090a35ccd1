"""The Kullback-Leibler divergence between two sets of logits, for distillation."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def kl_divergence(student: Tensor, teacher: Tensor, temperature: float = 1.0) -> Tensor:
    """KL(softmax(teacher / T) || softmax(student / T)) of logits [B, K], mean over B."""
    if not temperature > 0:
        raise ValueError(f"temperature must be above 0, got {temperature}")
    log_q = F.log_softmax(student / temperature, -1)
    log_p = F.log_softmax(teacher / temperature, -1)
    return F.kl_div(log_q, log_p, log_target=True, reduction="batchmean")
