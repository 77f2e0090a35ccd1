"""Health checks of a run: non-finite loss or membrane, exploding gradients, silent layers, collapsed thresholds."""

from __future__ import annotations

import math
from typing import Any

import torch

from steadyspike.nn.membrane_health import non_finite_layers
from steadyspike.nn.model_check import dead_layers
from steadyspike.train.state.session import EndOfRun, Session

_LOST = 1.01  # the loss of a silent network varies around that of a constant guess; this factor is clearly above it
COLUMNS = ("epoch", "step", "kind", "layer", "message")


def first_bad_layer(session: Session, batch: Any) -> tuple[str | None, str]:
    """Returns the first layer, in running order, whose potential is not finite on ``batch``, and what is wrong with it.

    It runs the batch once more and restores the statistics afterwards. If every potential is finite, it names the last
    layer with a non-finite gradient, because gradients flow from the last layer to the first.
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


class HealthWatch:
    """Applies the policies of [health]; every finding becomes a row of health.csv that names the layer."""

    def __init__(self, session: Session) -> None:
        self.session = session

    def before_update(self) -> None:
        """Checks the loss and the gradient of the next optimizer step."""
        session, table, step = self.session, self.session.recipe.health, self.session.step
        # Under fp16 the loss scaler finds its scale by overflowing gradients, and skips those steps itself.
        scaled = session.recipe.train.precision == "fp16"
        if step.bad_loss or (not math.isfinite(step.gradient) and not scaled):
            layer, what = first_bad_layer(session, session.inputs)
            source = f"layer '{layer}': {what}" if layer else what
            self.report("non_finite", layer, source, table.non_finite, "diverged")
        elif math.isfinite(step.gradient) and step.gradient > table.max_gradient:
            layer = session.gradients.groups[max(range(len(step.norms)), key=step.norms.__getitem__)]
            text = f"layer '{layer}': the gradient norm is {step.gradient:.3g}, above {table.max_gradient:g}"
            self.report("exploding_gradient", layer, text, table.exploding_gradient, "diverged")

    def after_epoch(self) -> None:
        """Checks the layers' activity in training and evaluation, the thresholds and the loss."""
        session, table = self.session, self.session.recipe.health
        shares = session.watch.silent()
        silent = {name: 0.0 for name, share in zip(session.watch.layers, shares) if share == 1.0}
        for check in dead_layers(silent):
            self.report("silent_layer", check.layer, check.message, table.silent_layer, "silent")
        self._look_at_evaluation([row.layer for row in session.rows if row.rate == 0 and row.layer not in silent])
        for name, neuron in session.watch.layers.items():
            v = float(neuron.threshold.detach().abs().min())
            if neuron.spiking and math.isnan(v):
                self.report("non_finite", name, f"layer '{name}': the threshold is nan", table.non_finite, "diverged")
            elif neuron.spiking and v < table.min_threshold:
                text = f"layer '{name}': the threshold has collapsed to {v:.3g}, below {table.min_threshold:g}"
                self.report("collapsed_threshold", name, text, table.collapsed_threshold, "collapsed")
        self._compare_with_chance()

    def _look_at_evaluation(self, silent: list[str]) -> None:
        """Reports layers that fire in training but not in evaluation.

        This does not end the run: running statistics may need more epochs.
        """
        why = "in training but not once in evaluation: running statistics (norm, MP-Init) do not match yet"
        for layer in silent:
            self._write("silent_in_evaluation", layer, f"layer '{layer}' fires {why}")
        if silent:
            names = ", ".join(f"'{layer}'" for layer in silent)
            text = f"layer {names} fires {why}" if len(silent) == 1 else f"layers {names} fire {why}"
            self.session.messages.append(text)

    def _compare_with_chance(self) -> None:
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
            self.report("worse_than_chance", loudest.layer, text, table.worse_than_chance, "diverged")

    def report(self, kind: str, layer: str | None, text: str, policy: str, status: str) -> None:
        """Records a finding, for steps once per epoch, and ends the run if the policy requires it."""
        session = self.session
        once = kind if kind in ("non_finite", "exploding_gradient") else f"{kind} {layer}"
        if once not in session.warned:
            session.warned.add(once)
            session.messages.append(text)
            self._write(kind, layer or "", text)
        if policy != "warn":
            raise EndOfRun(status, text, layer=layer, present=policy == "stop")

    def _write(self, kind: str, layer: str, text: str) -> None:
        session = self.session
        if session.tables:
            row = {"kind": kind, "layer": layer, "message": text}
            session.tables["health"].add(epoch=session.epoch + 1, step=session.steps, **row)
