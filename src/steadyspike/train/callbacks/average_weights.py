"""Keeps a run's weight average up to date, and evaluates it in place of the weights."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from steadyspike.train.session.weight_average import WeightAverage


class AverageWeights(Callback):
    """Updates the average after every optimizer step; evaluations see the average."""

    def __init__(self, average: WeightAverage) -> None:
        self.average = average
        self._step = 0

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.average.start()

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._step = trainer.global_step

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        if trainer.global_step != self._step:
            self._step = trainer.global_step
            self.average.update(self._step)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.average.enter()

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.average.leave()
