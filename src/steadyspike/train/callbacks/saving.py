"""Writes checkpoints of everything a run needs to go on as if nothing had happened."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from lightning.pytorch import Callback, LightningModule, Trainer

from steadyspike.nn.sync import world_size
from steadyspike.train.files.best_checkpoint import keep_best
from steadyspike.train.files.checkpoint import FORMAT
from steadyspike.train.files.tables import Table
from steadyspike.train.internals import accumulates, loop_state
from steadyspike.train.session.random_state import rng_state
from steadyspike.train.session.session import Session


def _of_all_processes(value: Any) -> list[Any]:
    if world_size() == 1:
        return [value]
    found: list[Any] = [None] * world_size()
    dist.all_gather_object(found, value)
    return found


class CheckpointSaver(Callback):
    """Writes last.ckpt before the first step, every ``save_every`` steps and after every epoch.

    A checkpoint is taken at one of three places, which ``batch`` tells apart:

    - between two optimizer steps of an epoch (0 < batch < all);
    - after the last step of an epoch, when a signal stops its evaluation (batch = all);
    - between two epochs (batch = 0), when evaluation and tables of the old one are done.

    The state of Lightning's loop is saved for the first kind only; for the others the counters are enough.
    """

    def __init__(self, session: Session, tables: dict[str, Table]) -> None:
        self.session, self.tables = session, tables
        self._saved_step = 0

    def state(self, trainer: Trainer, batch: int, rng: dict[str, Any]) -> dict[str, Any]:
        """The content of a checkpoint; every process must call it."""
        session = self.session
        mine = {"rng": rng, "sums": session.accumulators()}
        epoch = trainer.current_epoch + (batch == 0 and trainer.global_step > 0)
        return {
            "format": FORMAT,
            "identity": session.identity(trainer.world_size),
            "epoch": epoch,
            "batch": batch,
            "step": trainer.global_step,
            "state_dict": session.task.model.state_dict(),
            "average": session.average.state() if session.average is not None else None,
            "optimizer": trainer.optimizers[0].state_dict(),
            "schedule": trainer.lr_scheduler_configs[0].scheduler.state_dict(),
            "precision": trainer.precision_plugin.state_dict(),
            "loop": loop_state(trainer) if 0 < batch < trainer.num_training_batches else None,
            "loader": session.data.train_dataloader().state_dict(),
            "ranks": _of_all_processes(mine),
            "files": {name: table.sync() for name, table in self.tables.items()},
            "best": [session.best.epoch, session.best.accuracy],
            "lost_epochs": session.lost_epochs,
        }

    def save(self, trainer: Trainer, batch: int, rng: dict[str, Any] | None = None) -> None:
        """Writes last.ckpt, and best.ckpt where the epoch that ended is the best; every process must call it."""
        state = self.state(trainer, batch, rng or rng_state())
        self._saved_step = trainer.global_step
        if trainer.is_global_zero:
            folder, best = self.session.folder, self.session.best
            trainer.strategy.checkpoint_io.save_checkpoint(state, folder.last)
            if batch == 0 and best.epoch == state["epoch"] > 0:
                keep_best(folder)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._saved_step = trainer.global_step
        if not self.session.continued:
            self.save(trainer, 0)

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *args: Any) -> None:
        batch = int(args[-1]) + 1
        if batch >= trainer.num_training_batches or accumulates(trainer):
            return
        every = self.session.recipe.train.save_every
        due = every > 0 and trainer.global_step - self._saved_step >= every
        if due or self.session.step.stop_asked:
            self.save(trainer, batch)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.save(trainer, 0)
