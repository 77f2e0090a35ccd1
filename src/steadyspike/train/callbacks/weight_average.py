"""An exponential moving average of weights and statistics, evaluated in their place."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor, nn


class WeightAverage(Callback):
    """``average = decay * average + (1 - decay) * value`` after every optimizer step, for parameters and statistics.

    Statistics (norms, MP-Init) are averaged too: they belong to the weights they were measured with. Whole numbers
    (batch counters) are copied.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.model, self.decay = model, decay
        self.average: dict[str, Tensor] = {}
        self._step = 0
        self._swap = ExitStack()

    def _values(self) -> dict[str, Tensor]:
        return {name: value.detach() for name, value in self.model.state_dict().items()}

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not self.average:
            self.average = {name: value.clone() for name, value in self._values().items()}

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._step = trainer.global_step

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        if trainer.global_step == self._step:
            return
        self._step = trainer.global_step
        self.update()

    @torch.no_grad()
    def update(self) -> None:
        """After one optimizer step."""
        now = self._values()
        smooth = [name for name, value in now.items() if value.is_floating_point()]
        torch._foreach_lerp_([self.average[n] for n in smooth], [now[n] for n in smooth], 1 - self.decay)
        for name in now.keys() - set(smooth):
            self.average[name].copy_(now[name])

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """The model holds the average while the block runs."""
        present = {name: value.clone() for name, value in self._values().items()}
        self.model.load_state_dict(self.average)
        try:
            yield
        finally:
            self.model.load_state_dict(present)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._swap.enter_context(self.in_place())

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.leave()

    def leave(self) -> None:
        """The model has its own weights again, if it was being evaluated."""
        self._swap.close()

    def state(self) -> dict[str, Tensor]:
        return {name: value.cpu() for name, value in self.average.items()}

    def restore(self, state: dict[str, Tensor]) -> None:
        devices = {name: value.device for name, value in self._values().items()}
        self.average = {name: value.to(devices[name], copy=True) for name, value in state.items()}
