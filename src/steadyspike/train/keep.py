"""Checkpoints of everything a run needs to go on as if nothing had happened, and the way back from them."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from lightning.pytorch import Callback, LightningModule, Trainer

from steadyspike.nn.sync import world_size
from steadyspike.train.checkpoint import FORMAT, link
from steadyspike.train.folder import fingerprint
from steadyspike.train.rng import rng_state, set_rng_state
from steadyspike.train.session import Best, EndOfRun, Session
from steadyspike.train.tables import Table


def identity(session: Session, processes: int) -> dict[str, Any]:
    """What a checkpoint must share with the run that continues it."""
    return {
        "recipe": fingerprint(session.recipe),
        "split": session.bundle.split.fingerprint,
        "processes": processes,
    }


def _of_all_processes(value: Any) -> list[Any]:
    if world_size() == 1:
        return [value]
    found: list[Any] = [None] * world_size()
    dist.all_gather_object(found, value)
    return found


class Keeper(Callback):
    """Writes last.ckpt before the first step, every ``save_every`` steps, after every epoch and when a signal asks.

    A checkpoint is taken between two optimizer steps of an epoch (``batch`` > 0), or between two epochs (``batch`` = 0,
    with evaluation and tables of the old one done). Of the trainer's own loop state only the first kind is used; at an
    epoch's beginning the counters say it all.
    """

    def __init__(self, session: Session, tables: dict[str, Table]) -> None:
        self.session, self.tables = session, tables
        self._saved_step = 0

    # ---- writing

    def state(self, trainer: Trainer, batch: int) -> dict[str, Any]:
        session = self.session
        mine = {"rng": rng_state(), "sums": session.accumulators()}
        epoch = trainer.current_epoch + (batch == 0 and trainer.global_step > 0)
        return {
            "format": FORMAT,
            "identity": identity(session, trainer.world_size),
            "epoch": epoch,
            "batch": batch,
            "step": trainer.global_step,
            "state_dict": session.task.model.state_dict(),
            "average": session.average.state() if session.average is not None else None,
            "optimizer": trainer.optimizers[0].state_dict(),
            "schedule": trainer.lr_scheduler_configs[0].scheduler.state_dict(),
            "precision": trainer.precision_plugin.state_dict(),
            "loop": trainer.fit_loop.state_dict() if batch else None,
            "loader": session.data.train_dataloader().state_dict(),
            "ranks": _of_all_processes(mine),
            "files": {name: table.sync() for name, table in self.tables.items()},
            "best": [session.best.epoch, session.best.accuracy],
            "lost_epochs": session.lost_epochs,
        }

    def save(self, trainer: Trainer, batch: int) -> None:
        state = self.state(trainer, batch)
        self._saved_step = trainer.global_step
        if trainer.is_global_zero:
            trainer.strategy.checkpoint_io.save_checkpoint(state, self.session.folder.last)
            if batch == 0:
                self._link_best(state["epoch"])

    def _link_best(self, epoch: int) -> None:
        folder, best = self.session.folder, self.session.best
        if best.epoch == epoch and epoch > 0:
            link(folder.last, folder.best)

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *args: Any) -> None:
        batch = int(args[-1]) + 1
        if batch >= trainer.num_training_batches or trainer.fit_loop._should_accumulate():
            return
        every = self.session.recipe.train.save_every
        due = every > 0 and trainer.global_step - self._saved_step >= every
        if due or self.session.stop_asked:
            self.save(trainer, batch)
        self._stop_if_asked()

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.save(trainer, 0)
        if trainer.current_epoch + 1 < self.session.recipe.schedule.epochs:
            self._stop_if_asked()

    def _stop_if_asked(self) -> None:
        if self.session.stop_asked:
            raise EndOfRun("interrupted", "stopped by a signal; continue with --resume")

    # ---- reading

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        state, session = self.session.resumed, self.session
        if state is None:
            return
        session.task.model.load_state_dict(state["state_dict"])
        if session.average is not None:
            session.average.restore(state["average"])
        trainer.optimizers[0].load_state_dict(state["optimizer"])
        trainer.lr_scheduler_configs[0].scheduler.load_state_dict(state["schedule"])
        trainer.precision_plugin.load_state_dict(state["precision"])
        session.best = Best(int(state["best"][0]), float(state["best"][1]))
        session.lost_epochs = int(state["lost_epochs"])
        self._set_counters(trainer, state)
        self._saved_step = trainer.global_step
        if trainer.is_global_zero and state["batch"] == 0:
            self._link_best(state["epoch"])

    def _set_counters(self, trainer: Trainer, state: dict[str, Any]) -> None:
        loop = trainer.fit_loop
        if state["batch"]:
            loop.load_state_dict(state["loop"])
            return
        epoch, step, batches = state["epoch"], state["step"], len(self.session.data.train_dataloader())
        for counts, value in (
            (loop.epoch_progress, epoch),
            (loop.epoch_loop.batch_progress, epoch * batches),
            (loop.epoch_loop.automatic_optimization.optim_progress.optimizer.step, step),
        ):
            for name in ("ready", "started", "processed", "completed"):
                if hasattr(counts.total, name):
                    setattr(counts.total, name, value)
        for name in ("ready", "started", "processed", "completed"):
            setattr(loop.epoch_progress.current, name, epoch)
        loop.epoch_loop._batches_that_stepped = step

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        state = self.session.resumed
        if state is None:
            self.save(trainer, 0)
            return
        self.session.data.train_dataloader().load_state_dict(state["loader"])
        self.session.task.objective.set_epoch(state["epoch"])
        mine = state["ranks"][trainer.global_rank]
        if state["batch"]:
            self.session.restore_accumulators(mine["sums"])
        set_rng_state(mine["rng"])
        self.session.resumed = None
