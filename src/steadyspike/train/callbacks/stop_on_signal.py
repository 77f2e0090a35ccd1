"""Stops a run at the next safe place after SIGTERM or SIGINT."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from lightning.pytorch import Callback, LightningModule, Trainer

from steadyspike.nn.sync import world_size
from steadyspike.train.callbacks.saving import CheckpointSaver
from steadyspike.train.internals import accumulates
from steadyspike.train.session.random_state import rng_state
from steadyspike.train.session.session import EndOfRun, Session


class StopOnSignal(Callback):
    """Raises `EndOfRun` after a step, before a batch of an evaluation or after an epoch, with a checkpoint written.

    Comes after ``saver`` in the list of callbacks, which has then saved the step or the epoch.
    """

    def __init__(self, session: Session, saver: CheckpointSaver) -> None:
        self.session, self.saver = session, saver
        self._rng: dict[str, Any] = {}  # before the evaluation that runs now
        self._common_batches = 0  # of this evaluation: so many exist in every process

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.session.signals.wait("in training")

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *args: Any) -> None:
        if int(args[-1]) + 1 >= trainer.num_training_batches or accumulates(trainer):
            return
        if self.session.step.stop_asked:
            raise EndOfRun("interrupted", f"in epoch {trainer.current_epoch + 1}, after step {trainer.global_step}")

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._asked(trainer):
            raise EndOfRun("interrupted", f"after epoch {trainer.current_epoch + 1}")

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._rng = rng_state()
        self._common_batches = int(trainer.num_val_batches[0])
        if world_size() > 1:
            least = torch.tensor(self._common_batches, device=trainer.strategy.root_device)
            dist.all_reduce(least, op=dist.ReduceOp.MIN)
            self._common_batches = int(least)

    def on_validation_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """An evaluation may be long; stopped here, only the evaluation is done again."""
        if batch_idx < self._common_batches and self._asked(trainer):
            if self.session.average is not None:
                self.session.average.leave()
            self.saver.save(trainer, int(trainer.num_training_batches), self._rng)
            raise EndOfRun("interrupted", f"in the evaluation after epoch {trainer.current_epoch + 1}")

    def _asked(self, trainer: Trainer) -> bool:
        """Whether a signal has come to any process."""
        asked = self.session.signals()
        if world_size() == 1:
            return asked
        flag = torch.tensor(int(asked), device=trainer.strategy.root_device)
        dist.all_reduce(flag, op=dist.ReduceOp.MAX)
        return bool(flag)
