"""Stops a run when a signal asks for it."""

from __future__ import annotations

from lightning.pytorch import Callback, LightningModule, Trainer

from steadyspike.train.session.signals import Signals


class StopOnSignal(Callback):
    """From the start of training on, signals wait for the end of a step."""

    def __init__(self, signals: Signals) -> None:
        self.signals = signals

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.signals.wait("in training")
