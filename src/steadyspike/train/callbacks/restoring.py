"""Puts the checkpoint that a run continues from back into trainer, network and session."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from steadyspike.train.files.best_checkpoint import keep_best
from steadyspike.train.internals import evaluate_and_end_epoch, set_loop_state, start_at
from steadyspike.train.session.random_state import set_rng_state
from steadyspike.train.session.session import Best, Session


class CheckpointRestorer(Callback):
    """Restores ``session.resumed``, if there is one, in two steps.

    Weights, optimizer and counters are restored before training starts; the position in the data and the random
    generators as the last thing before the first step.
    """

    def __init__(self, session: Session) -> None:
        self.session = session

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        state, session = self.session.resumed, self.session
        if state is None:
            return
        session.continued = True
        session.task.model.load_state_dict(state["state_dict"])
        if session.average is not None:
            session.average.restore(state["average"])
        trainer.optimizers[0].load_state_dict(state["optimizer"])
        trainer.lr_scheduler_configs[0].scheduler.load_state_dict(state["schedule"])
        trainer.precision_plugin.load_state_dict(state["precision"])
        session.best = Best(int(state["best"][0]), float(state["best"][1]))
        session.lost_epochs = int(state["lost_epochs"])
        if state["loop"] is not None:
            set_loop_state(trainer, state["loop"])
        else:
            self._start_epoch(trainer, state["epoch"], state["step"])
        if trainer.is_global_zero and state["batch"] == 0 and session.best.epoch == state["epoch"] > 0:
            keep_best(session.folder)  # the run may have been killed just before it did

    def _start_epoch(self, trainer: Trainer, epoch: int, step: int) -> None:
        start_at(trainer, epoch, step, len(self.session.data.train_dataloader()))

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        state: dict[str, Any] | None = self.session.resumed
        if state is None:
            return
        self.session.data.train_dataloader().load_state_dict(state["loader"])
        self.session.task.objective.set_epoch(state["epoch"])
        mine = state["ranks"][trainer.global_rank]
        if state["batch"]:
            self.session.restore_accumulators(mine["sums"])
        set_rng_state(mine["rng"])
        self.session.resumed = None
        if state["batch"] == trainer.num_training_batches:  # a signal stopped its evaluation
            epoch = trainer.current_epoch
            evaluate_and_end_epoch(trainer, pl_module)
            self._start_epoch(trainer, epoch + 1, trainer.global_step)
