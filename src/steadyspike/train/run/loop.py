"""The training loop: epochs, steps, accumulation, clipping, precision, weight average, evaluation, checkpoints."""

from __future__ import annotations

import inspect
import math
import warnings
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from steadyspike.nn.sync import world_size
from steadyspike.train.run.accelerator import autocast
from steadyspike.train.run.evaluation import evaluating
from steadyspike.train.run.health_policy import HealthWatch
from steadyspike.train.state.processes import least
from steadyspike.train.state.saving import restore, restore_random, rng_state, save
from steadyspike.train.state.session import EndOfRun, Observer, Session, Step


class Loop:
    """Trains a session to the end of its last epoch.

    recorder: writes the tables
    health: checks every gradient before it is used, and may end the run
    observers: show the run
    look: called after an epoch, when all its files are written
    """

    def __init__(
        self,
        session: Session,
        recorder: Observer,
        health: HealthWatch,
        observers: Sequence[Observer] = (),
        look: Callable[[], object] = lambda: None,
    ) -> None:
        self.session, self.recorder, self.health, self.look = session, recorder, health, look
        self.observers = observers
        self.accumulate = session.recipe.train.accumulate
        self.parameters = [p for group in session.optimizer.param_groups for p in group["params"]]
        self.loss: nn.Module = _ddp(session) if session.processes.count > 1 else session.task

    def run(self) -> None:
        """Returns after the last epoch; raises `EndOfRun` if health or a signal ends the run before it."""
        session = self.session
        failed = True
        try:
            self._start()
            while session.epoch < session.epochs:
                if session.batch == 0:
                    session.start_epoch()
                if session.batch < session.batches:
                    self._train()
                self._evaluate()
                self._end_epoch()
            failed = False
        finally:
            for observer in (self.recorder, *self.observers):
                observer.close(failed)

    def _start(self) -> None:
        session, state = self.session, self.session.resumed
        session.signals.wait("in training")
        if session.average is not None:
            session.average.start()
        if state is not None:
            restore(session, state)
        if session.epoch < session.epochs:  # otherwise only the test evaluation is left
            for observer in (self.recorder, *self.observers):
                observer.start()
        if state is None:
            save(session)
        else:
            restore_random(session, state)
        session.resumed = None

    # ---- training

    def _train(self) -> None:
        """Runs the rest of the epoch's training batches."""
        session = self.session
        session.task.objective.set_epoch(session.epoch)
        for batch in session.data.train_loader:
            session.batch, session.inputs = session.batch + 1, batch
            update = session.batch % self.accumulate == 0 or session.batch == session.batches
            self._add_gradient(batch, last=update)
            if not update:
                continue
            self._update()
            for observer in (self.recorder, *self.observers):
                observer.after_step()
            if session.batch < session.batches:
                self._save_or_stop()

    def _add_gradient(self, batch: Any, last: bool) -> None:
        """Adds the gradient of one forward pass.

        last: it is the last one of this optimizer step, so processes exchange gradients
        """
        waits = isinstance(self.loss, DistributedDataParallel) and not last
        with self.loss.no_sync() if waits else nullcontext():  # type: ignore[operator]
            with autocast(self.session.device, self.session.recipe.train.precision):
                loss = self.loss(batch)
            share = loss if self.accumulate == 1 else loss / self.accumulate
            self.session.scaler.scale(share).backward()

    def _update(self) -> None:
        """One optimizer step."""
        session, recipe = self.session, self.session.recipe
        if session.scaler.is_enabled():
            session.scaler.unscale_(session.optimizer)
        session.step = self._summary()
        session.losses.append(session.step.loss)
        self.health.before_update()
        if recipe.train.clip:
            torch.nn.utils.clip_grad_norm_(self.parameters, recipe.train.clip)
        session.scaler.step(session.optimizer)
        session.scaler.update()
        session.optimizer.zero_grad()
        with warnings.catch_warnings():  # torch warns if the scaler skipped the first step
            warnings.simplefilter("ignore", UserWarning)
            session.schedule.step()
        session.steps += 1
        if session.average is not None:
            session.average.update(session.steps)

    def _summary(self) -> Step:
        """Returns loss and gradient norms of the next step: one read from the device, and one all-reduce."""
        session = self.session
        norms, losses = session.gradients.norms(*session.task.step_losses)
        session.gradients.add(norms)
        session.task.step_losses.clear()
        loss = sum(losses) / len(losses)
        bad, asked = not math.isfinite(loss), session.signals()
        if world_size() > 1:
            sums = torch.tensor([loss, bad, asked], dtype=torch.float64, device=session.device)
            dist.all_reduce(sums)
            loss, any_bad, any_asked = sums.tolist()
            loss, bad, asked = loss / world_size(), any_bad > 0, any_asked > 0
        return Step(loss, math.sqrt(sum(norm * norm for norm in norms)), tuple(norms), bad, asked)

    def _save_or_stop(self) -> None:
        session, every = self.session, self.session.recipe.train.save_every
        if session.step.stop_asked or (every > 0 and session.steps - session.saved_step >= every):
            save(session)
        if session.step.stop_asked:
            raise EndOfRun("interrupted", f"in epoch {session.epoch + 1}, after step {session.steps}")

    # ---- evaluation and the end of an epoch

    def _evaluate(self) -> None:
        """Evaluates the part that selects the best epoch, every ``eval_every`` epochs and after the last."""
        session, part, number = self.session, self.session.bundle.selection_part, self.session.epoch + 1
        if part is None or (number % session.recipe.train.eval_every and number < session.epochs):
            return
        before, task, loader = rng_state(), session.task, session.data.eval_loader(part)
        task.eval_sums.reset()
        for observer in (self.recorder, *self.observers):
            observer.before_evaluation()
        shared = least(len(loader), session.device)  # number of batches in every process
        average = session.average.in_place() if session.average is not None else nullcontext()
        with (
            average,
            evaluating(task.model),
            autocast(session.device, session.recipe.train.precision),
            torch.inference_mode(),
        ):
            for passed, batch in enumerate(loader):
                if stopped := passed < shared and self._stop_asked():
                    break
                task.eval_step(batch)
            else:
                stopped = False
        if stopped:  # an evaluation may be long; a resume repeats only this evaluation
            save(session, before)
            raise EndOfRun("interrupted", f"in the evaluation after epoch {number}")
        task.last_eval = task.eval_sums.scores()

    def _stop_asked(self) -> bool:
        """Returns whether any process has got a signal."""
        return least(-int(self.session.signals()), self.session.device) < 0

    def _end_epoch(self) -> None:
        session, scores = self.session, self.session.task.last_eval
        session.close_epoch()
        self.recorder.after_epoch()
        self.health.after_epoch()
        if scores is not None:
            session.best = session.best.or_better(session.epoch + 1, scores)
        for observer in self.observers:
            observer.after_epoch()
        session.losses = []
        session.epoch, session.batch = session.epoch + 1, 0
        save(session)
        self.look()
        if self._stop_asked():
            raise EndOfRun("interrupted", f"after epoch {session.epoch}")


def _ddp(session: Session) -> DistributedDataParallel:
    """DDP that does not broadcast rank 0's buffers at every step, because norms and MP-Init synchronise themselves."""
    new = "forward_sync_buffers" in inspect.signature(DistributedDataParallel.__init__).parameters
    options: dict[str, Any] = {"forward_sync_buffers" if new else "broadcast_buffers": False}
    devices = [session.device] if session.device.type == "cuda" else None
    return DistributedDataParallel(session.task, device_ids=devices, **options)
