"""Watches a run: a loss or membrane that is not finite, exploding gradients, silent layers, collapsed thresholds."""

from __future__ import annotations

import math
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from steadyspike.nn.membrane_health import non_finite_layers
from steadyspike.nn.model_check import dead_layers
from steadyspike.train.files.tables import Table
from steadyspike.train.session.session import EndOfRun, Session

_LOST = 1.01  # a silent network's loss wanders around that of a constant guess; this is clearly above
COLUMNS = ("epoch", "step", "kind", "layer", "message")


def first_bad_layer(session: Session, batch: Any) -> tuple[str | None, str]:
    """The first layer, in the order they run, whose potential is not finite on ``batch``, and what is wrong with it.

    Runs the batch once more and restores the statistics afterwards. If every potential is finite, it names the last
    layer whose gradient is not, because gradients flow from the last layer to the first.
    """
    model = session.task.model
    buffers = {name: b.clone() for name, b in model.named_buffers()}
    active = session.watch.active
    with torch.no_grad(), non_finite_layers(model, "trainer health") as bad:
        model(batch[0])
        for name, b in model.named_buffers():
            b.copy_(buffers[name])
    session.watch.active = active
    if bad:
        return bad[0]
    norms, _ = session.gradients.norms()
    for name, norm in reversed(list(zip(session.gradients.groups, norms))):
        if not math.isfinite(norm):
            return name, "the gradient of its weights is not finite although the forward pass is"
    return None, "the loss is not finite although every membrane is"


class HealthWatch(Callback):
    """Applies the policies of [health]; every finding becomes a row of health.csv that names the layer.

    Comes after `StepSummary` in the list of callbacks, whose numbers it reads.
    """

    def __init__(self, session: Session, table: Table | None) -> None:
        self.session, self.table = session, table
        self._batch: Any = None

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        self._batch = batch

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Any) -> None:
        session, table, step = self.session, self.session.recipe.health, self.session.step
        # Under fp16 the loss scale searches its size by overflowing gradients, and skips those steps itself.
        scaled = session.recipe.train.precision == "fp16"
        if step.bad_loss or (not math.isfinite(step.gradient) and not scaled):
            layer, what = first_bad_layer(session, self._batch)
            place = f"layer '{layer}': {what}" if layer else what
            self.report(trainer, "non_finite", layer, place, table.non_finite, "diverged")
        elif step.gradient > table.max_gradient:
            layer = session.gradients.groups[max(range(len(step.norms)), key=step.norms.__getitem__)]
            text = f"layer '{layer}': the gradient norm is {step.gradient:.3g}, above {table.max_gradient:g}"
            self.report(trainer, "exploding_gradient", layer, text, table.exploding_gradient, "diverged")

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        table = self.session.recipe.health
        silent = self.session.watch.silent()
        quiet = {name: 0.0 for name, share in zip(self.session.watch.layers, silent) if share == 1.0}
        for check in dead_layers(quiet):
            self.report(trainer, "silent_layer", check.layer, check.message, table.silent_layer, "silent")
        for name, layer in self.session.watch.layers.items():
            v = float(layer.threshold.detach().abs().min())
            if layer.spiking and math.isnan(v):
                self.report(
                    trainer, "non_finite", name, f"layer '{name}': the threshold is nan", table.non_finite, "diverged"
                )
            elif layer.spiking and v < table.min_threshold:
                text = f"layer '{name}': the threshold has collapsed to {v:.3g}, below {table.min_threshold:g}"
                self.report(trainer, "collapsed_threshold", name, text, table.collapsed_threshold, "collapsed")
        self._compare_with_chance(trainer)

    def _compare_with_chance(self, trainer: Trainer) -> None:
        """Compares the loss with that of a constant guess: norms keep activations finite even if a network explodes."""
        session, table = self.session, self.session.recipe.health
        assert session.train_scores is not None
        if (guess := session.task.loss_of_a_guess(session.bundle.num_classes)) is None:
            return
        lost = not session.train_scores.loss <= _LOST * guess
        session.lost_epochs = session.lost_epochs + 1 if lost else 0
        if session.lost_epochs >= table.patience:
            loudest = max(session.rows, key=lambda row: row.gradient or 0.0)
            text = (
                f"for {session.lost_epochs} epochs the loss has been above {guess:.3f}, that of a constant guess; "
                f"the largest gradient is that of layer '{loudest.layer}' (norm {loudest.gradient or 0.0:.3g})"
            )
            self.report(trainer, "worse_than_chance", loudest.layer, text, table.worse_than_chance, "diverged")

    def report(self, trainer: Trainer, kind: str, layer: str | None, text: str, policy: str, status: str) -> None:
        """Records a finding, for steps once per epoch, and ends the run if the policy says so."""
        epoch = trainer.current_epoch
        once = kind if kind in ("non_finite", "exploding_gradient") else f"{kind} {layer}"
        if once not in self.session.warned:
            self.session.warned.add(once)
            self.session.messages.append(text)
            if self.table is not None:
                self.table.add(epoch=epoch + 1, step=trainer.global_step, kind=kind, layer=layer or "", message=text)
        if policy != "warn":
            raise EndOfRun(status, text, layer=layer, present=policy == "stop")
