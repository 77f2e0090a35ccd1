"""Sums up every optimizer step for the other callbacks: loss, gradient norms, and whether a signal has come."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.distributed as dist
from lightning.pytorch import Callback, LightningModule, Trainer

from steadyspike.nn.sync import world_size
from steadyspike.train.session.session import Session, Step


class StepSummary(Callback):
    """Fills ``session.step`` before every optimizer step.

    One read from the device and, with several processes, one all-reduce serve all callbacks.
    """

    def __init__(self, session: Session) -> None:
        self.session = session

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Any) -> None:
        session = self.session
        norms, losses = session.gradients.norms(*session.task.step_losses)
        session.gradients.add(norms)
        session.task.step_losses.clear()
        loss = sum(losses) / len(losses)
        bad, asked = not math.isfinite(loss), session.signals()
        if world_size() > 1:
            sums = torch.tensor([loss, bad, asked], dtype=torch.float64, device=trainer.strategy.root_device)
            dist.all_reduce(sums)
            loss, any_bad, any_asked = sums.tolist()
            loss, bad, asked = loss / world_size(), any_bad > 0, any_asked > 0
        session.step = Step(loss, math.sqrt(sum(norm * norm for norm in norms)), tuple(norms), bad, asked)
        session.losses.append(loss)
