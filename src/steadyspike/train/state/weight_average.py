"""An exponential moving average of weights and statistics, which is evaluated instead of them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from steadyspike.core.torch_private import move_towards


class WeightAverage:
    """``average = decay * average + (1 - decay) * value`` after every optimizer step, for parameters and statistics.

    Statistics (norms, MP-Init) are averaged too, because they belong to the averaged weights. Whole numbers (batch
    counters) are copied.
    ramp: after step n the decay is ``decay * (1 - exp(-n / ramp))``, so that the average forgets its start; 0: no ramp
    """

    def __init__(self, model: nn.Module, decay: float, ramp: int = 0) -> None:
        self.model, self.decay, self.ramp = model, decay, ramp
        self.average: dict[str, Tensor] = {}

    def _values(self) -> dict[str, Tensor]:
        return {name: value.detach() for name, value in self.model.state_dict().items()}

    def start(self) -> None:
        """Starts at the model's current values, unless an average was restored."""
        if not self.average:
            self.average = {name: value.clone() for name, value in self._values().items()}

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Adds the model's current values; called after every optimizer step, with its number from 1 on."""
        now = self._values()
        decay = self.decay * (1 - math.exp(-step / self.ramp)) if self.ramp else self.decay
        smooth = [name for name, value in now.items() if value.is_floating_point()]
        move_towards([self.average[n] for n in smooth], [now[n] for n in smooth], 1 - decay)
        for name in now.keys() - set(smooth):
            self.average[name].copy_(now[name])

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Puts the average into the model while the block runs."""
        present = {name: value.clone() for name, value in self._values().items()}
        self.model.load_state_dict(self.average)
        try:
            yield
        finally:
            self.model.load_state_dict(present)

    def state(self) -> dict[str, Tensor]:
        """Returns the average on the CPU, for a checkpoint."""
        return {name: value.cpu() for name, value in self.average.items()}

    def restore(self, state: dict[str, Tensor]) -> None:
        """Restores the average of a checkpoint."""
        devices = {name: value.device for name, value in self._values().items()}
        self.average = {name: value.to(devices[name], copy=True) for name, value in state.items()}
