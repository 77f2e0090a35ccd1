"""`SpikingTask`: a recipe's task for training with Lightning's Trainer. No other file needs Lightning."""

from __future__ import annotations

from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor

from steadyspike.data import DataBundle
from steadyspike.train.build.optimizer import build_optimizer, build_schedule
from steadyspike.train.build.task import Task, task_for
from steadyspike.train.recipe import Recipe


class SpikingTask(LightningModule):
    """``trainer.fit(SpikingTask.for_data(recipe, data.bundle), data.train_loader, data.eval_loader("validation"))``.

    It has the network, loss, optimizer and schedule of the recipe. The Trainer decides precision, clipping,
    accumulation and the number of epochs. ``last_eval`` holds the scores of the last evaluation.
    """

    def __init__(self, task: Task) -> None:
        super().__init__()
        self.task = task

    @classmethod
    def for_data(cls, recipe: Recipe, bundle: DataBundle) -> SpikingTask:
        """Builds the recipe's network for this data; its weights come from the recipe's seed."""
        return cls(task_for(recipe, bundle))

    def forward(self, x: Tensor) -> Any:
        """Returns the network's output: logits [T, B, K]."""
        return self.task.model(x)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss: Tensor = self.task(batch)
        self.log("train_loss", loss)
        return loss

    def on_train_epoch_start(self) -> None:
        self.task.train_sums.reset()
        self.task.objective.set_epoch(self.current_epoch)

    def on_validation_epoch_start(self) -> None:
        self.task.eval_sums.reset()

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        with torch.inference_mode():
            self.task.eval_step(batch)

    def on_validation_epoch_end(self) -> None:
        self.task.last_eval = self.task.eval_sums.scores()
        self.log(self.task.selected_by, self.task.last_eval.selects)

    def configure_optimizers(self) -> Any:
        optimizer = build_optimizer(self.task.recipe.optimizer, self.task.model)
        epochs = self.trainer.max_epochs or self.task.recipe.schedule.epochs
        steps = int(self.trainer.estimated_stepping_batches) // epochs
        schedule = build_schedule(self.task.recipe, optimizer, steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}
