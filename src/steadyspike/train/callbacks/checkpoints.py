"""Checkpoints of everything a run needs to go on as if nothing had happened, and the way back from them."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from lightning.pytorch import Callback, LightningModule, Trainer

from steadyspike.nn.sync import world_size
from steadyspike.train.files.atomic import link
from steadyspike.train.files.checkpoint import FORMAT
from steadyspike.train.files.same_recipe import fingerprint
from steadyspike.train.files.tables import Table
from steadyspike.train.session.random_state import rng_state, set_rng_state
from steadyspike.train.session.session import Best, EndOfRun, Session


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

    A checkpoint is taken between two optimizer steps of an epoch (``batch`` > 0), after its last step when a signal
    stops its evaluation (``batch`` = all), or between two epochs (``batch`` = 0, with evaluation and tables of the old
    one done). Of the trainer's own loop state only the first kind is used; for the others the counters say it all.
    """

    def __init__(self, session: Session, tables: dict[str, Table]) -> None:
        self.session, self.tables = session, tables
        self._saved_step = 0
        self._rng: dict[str, Any] = {}  # before the evaluation that runs now
        self._looks = 0  # at how many of its batches all processes ask for signals

    # ---- writing

    def state(self, trainer: Trainer, batch: int, rng: dict[str, Any]) -> dict[str, Any]:
        session = self.session
        mine = {"rng": rng, "sums": session.accumulators()}
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
            "loop": trainer.fit_loop.state_dict() if 0 < batch < trainer.num_training_batches else None,
            "loader": session.data.train_dataloader().state_dict(),
            "ranks": _of_all_processes(mine),
            "files": {name: table.sync() for name, table in self.tables.items()},
            "best": [session.best.epoch, session.best.accuracy],
            "lost_epochs": session.lost_epochs,
        }

    def save(self, trainer: Trainer, batch: int, rng: dict[str, Any] | None = None) -> None:
        state = self.state(trainer, batch, rng or rng_state())
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
        if self.session.stop_asked:
            raise EndOfRun("interrupted", f"in epoch {trainer.current_epoch + 1}, after step {trainer.global_step}")

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.save(trainer, 0)
        if self._asked(trainer):
            raise EndOfRun("interrupted", f"after epoch {trainer.current_epoch + 1}")

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._rng = rng_state()
        self._looks = int(trainer.num_val_batches[0])
        if world_size() > 1:  # processes may have one batch more or less than others
            least = torch.tensor(self._looks, device=trainer.strategy.root_device)
            dist.all_reduce(least, op=dist.ReduceOp.MIN)
            self._looks = int(least)

    def on_validation_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """An evaluation may be long; what it would lose is only itself."""
        if batch_idx < self._looks and self._asked(trainer):
            if self.session.average is not None:
                self.session.average.leave()
            self.save(trainer, int(trainer.num_training_batches), self._rng)
            raise EndOfRun("interrupted", f"in the evaluation after epoch {trainer.current_epoch + 1}")

    def _asked(self, trainer: Trainer) -> bool:
        """Whether a signal has come to any process."""
        asked = self.session.signals()
        if world_size() == 1:
            return asked
        flag = torch.tensor(int(asked), device=trainer.strategy.root_device)
        dist.all_reduce(flag, op=dist.ReduceOp.MAX)
        return bool(flag)

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
        if state["loop"] is not None:
            trainer.fit_loop.load_state_dict(state["loop"])
        else:
            self._at_start_of(trainer, state["epoch"], state["step"])

    def _at_start_of(self, trainer: Trainer, epoch: int, step: int) -> None:
        loop, batches = trainer.fit_loop, len(self.session.data.train_dataloader())
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
        if state["batch"] == trainer.num_training_batches:
            self._finish_epoch(trainer, pl_module)

    def _finish_epoch(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Evaluation and tables of an epoch that a signal stopped after its last step."""
        epoch = trainer.current_epoch
        trainer.validating = True
        trainer.fit_loop.epoch_loop.val_loop.run()
        trainer.training = True
        for callback in trainer.callbacks:  # type: ignore[attr-defined]
            callback.on_train_epoch_end(trainer, pl_module)
        self._at_start_of(trainer, epoch + 1, trainer.global_step)
