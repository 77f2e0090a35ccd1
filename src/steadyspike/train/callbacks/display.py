"""Shows a run on the screen: a header, a progress bar, one line per epoch."""

from __future__ import annotations

import time
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from steadyspike.kernels.scan.choose import choose_backend
from steadyspike.nn.model_check import dead_layers
from steadyspike.train.callbacks.duration import duration
from steadyspike.train.callbacks.memory_use import memory_held, memory_line
from steadyspike.train.session.session import Session

_WARM_UP = 2  # steps before the clock counts
_OFTEN_ENOUGH = 0.1  # seconds between two movements of the bar


class Display(Callback):
    """Prints the lines of a run; on a terminal also a progress bar."""

    def __init__(self, session: Session, notes: list[str], console: Console | None = None) -> None:
        self.session, self.notes = session, notes
        self.console = console or Console(highlight=False)
        self.bar: Progress | None = None
        self.line: TaskID | None = None
        self._first: float | None = None
        self._steps = 0
        self._epoch_start = time.monotonic()
        self._titled = False
        self._moved = 0.0
        self._held = 0  # bytes that the process held before the first step

    def say(self, text: str, style: str | None = None) -> None:
        self.console.print(text, style=style, markup=False, soft_wrap=True)

    # ---- the start

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._held = memory_held()[0]
        for note in self.notes:
            self.say(note, "yellow")
        self._header(trainer)
        self.bar = Progress(
            TextColumn("epoch {task.fields[epoch]}"),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TextColumn("loss {task.fields[loss]}"),
            TimeRemainingColumn(),
            console=self.console,
            transient=True,
            disable=not self.console.is_terminal,
        )
        self.bar.start()

    def _header(self, trainer: Trainer) -> None:
        session, recipe = self.session, self.session.recipe
        bundle, model = session.bundle, session.task.model
        parameters = sum(p.numel() for p in model.parameters())
        device = trainer.strategy.root_device
        kernel = choose_backend(recipe.neuron.backend or "auto", torch.empty(0, device=device))
        where = f"{trainer.world_size} x {device.type}" if trainer.world_size > 1 else device.type
        self.say(str(bundle))
        self.say(
            f"{recipe.model.name}: {parameters:,} parameters, neuron {recipe.neuron.name}, norm {recipe.norm.name}, "
            f"T = {recipe.data.timesteps}; {where}, {recipe.train.precision}, {kernel} kernel"
        )
        if session.bundle.selection_part != "validation":
            self.say(f"note: {session.bundle.split.record()['selection_text']}", "yellow")
        self.say(f"writing to {session.folder.root}")
        if trainer.global_step:
            self.say(f"continuing at epoch {trainer.current_epoch + 1}, step {trainer.global_step}", "green")

    def _columns(self) -> None:
        self._titled = True
        part = self.session.bundle.selection_part
        self.say(f"\nepoch     loss  {self.session.task.title(part)}", "bold")

    # ---- while it runs

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._epoch_start = time.monotonic()

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *args: Any) -> None:
        batch, number = args[-2], int(args[-1]) + 1
        self._steps += 1
        if self._steps == 1:
            self._warn_of_silent_layers(trainer)
        elif self._steps == 1 + _WARM_UP:
            device = trainer.strategy.root_device
            self.say(memory_line(self.session, batch, device, self._held, trainer.world_size), "dim")
            self._first = time.monotonic()
        elif self._steps == 4 + _WARM_UP and self._first is not None:
            self._say_time(trainer, (time.monotonic() - self._first) / 3)
        self._move(trainer, number)

    def _move(self, trainer: Trainer, number: int) -> None:
        assert self.bar is not None
        epochs, total, now = self.session.recipe.schedule.epochs, int(trainer.num_training_batches), time.monotonic()
        if number < total and (self.bar.disable or now - self._moved < _OFTEN_ENOUGH):
            return
        self._moved = now
        if self.line is None:
            self.line = self.bar.add_task("", total=total, epoch="", loss="")
        loss = f"{self.session.losses[-1]:.3f}" if self.session.losses else ""
        self.bar.update(self.line, completed=number, epoch=f"{trainer.current_epoch + 1}/{epochs}", loss=loss)
        if number == total:
            self.bar.remove_task(self.line)
            self.line = None

    def _warn_of_silent_layers(self, trainer: Trainer) -> None:
        if trainer.global_step <= 1:
            counts = self.session.watch.active.tolist()
            quiet = {name: 0.0 for name, (fired, _) in zip(self.session.watch.layers, counts) if fired == 0}
            for check in dead_layers(quiet):
                self.say(f"warning: at the first step, {check.message}", "yellow")

    def _say_time(self, trainer: Trainer, step: float) -> None:
        epoch = step * int(trainer.num_training_batches)
        left = self.session.recipe.schedule.epochs - trainer.current_epoch
        self.say(
            f"time: about {duration(epoch)} an epoch and {duration(epoch * left)} in all, without evaluation", "dim"
        )

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        session = self.session
        self._say_messages()
        if not self._titled:
            self._columns()
        scores, best = session.task.last_eval, session.best.epoch == trainer.current_epoch + 1
        found = scores.line() if scores is not None else ""
        took = duration(time.monotonic() - self._epoch_start)
        train = session.train_scores
        assert train is not None
        self.say(
            f"{trainer.current_epoch + 1:5d}  {train.loss:7.4f}  {session.task.train_line(train)}"
            f"  {found}  {'best' if best else '    '}  {took}"
        )

    def _say_messages(self) -> None:
        for message in self.session.messages:
            self.say(f"warning: {message}", "yellow")
        self.session.messages.clear()

    # ---- the end

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self._say_messages()
        self._close()

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._close()

    def _close(self) -> None:
        if self.bar is not None:
            self.bar.stop()  # the cursor comes back
