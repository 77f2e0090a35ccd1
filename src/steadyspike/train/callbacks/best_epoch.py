"""Selects the epoch with the highest accuracy (of detection: mAP) on the part that is kept for model selection."""

from __future__ import annotations

from lightning.pytorch import Callback, LightningModule, Trainer

from steadyspike.train.session.session import Best, Session


class BestEpoch(Callback):
    """Sets ``session.best`` at the end of an epoch that was evaluated; of equal epochs the first counts."""

    def __init__(self, session: Session) -> None:
        self.session = session

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        scores = self.session.task.last_eval
        if scores is None or self.session.bundle.selection_part is None:
            return
        if scores.selects > self.session.best.accuracy:
            self.session.best = Best(trainer.current_epoch + 1, scores.selects)
