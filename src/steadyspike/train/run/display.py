"""Shows a run on the screen: a header, a progress bar, one line per epoch."""

from __future__ import annotations

import os
import time

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from steadyspike.disk.plain_text import duration
from steadyspike.kernels.scan.choose import choose_backend
from steadyspike.nn.model_check import dead_layers
from steadyspike.nn.norm import TimeNorm
from steadyspike.train.files.environment import memory_held, size
from steadyspike.train.state.session import Observer, Session

_WARM_UP = 2  # steps before time is measured
_OFTEN_ENOUGH = 0.1  # seconds between two movements of the bar


class Display(Observer):
    """Prints the lines of a run; on a terminal also a progress bar."""

    def __init__(self, session: Session, notes: list[str], console: Console | None = None) -> None:
        self.session, self.notes = session, notes
        self.console = console or Console(highlight=False, emoji=False)
        self.bar: Progress | None = None
        self.line: TaskID | None = None
        self._first: float | None = None
        self._steps = 0
        self._epoch_start = time.monotonic()
        self._titled = False
        self._moved = 0.0
        self._held = 0  # bytes that the process used before the first step

    def say(self, text: str, style: str | None = None) -> None:
        self.console.print(text, style=style, markup=False, soft_wrap=True)

    # ---- the start

    def start(self) -> None:
        self._held = memory_held()[0]
        for note in self.notes:
            self.say(note, "yellow")
        self._header()
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

    def _header(self) -> None:
        session, recipe = self.session, self.session.recipe
        bundle, model = session.bundle, session.task.model
        parameters = sum(p.numel() for p in model.parameters())
        device, count = session.device, session.processes.count
        kernel = choose_backend(recipe.neuron.backend or "auto", torch.empty(0, device=device))
        where = f"{count} x {device.type}" if count > 1 else device.type
        self.say(str(bundle))
        # The user's own network may have no norm, or its own instead of the recipe's.
        norm = f"norm {recipe.norm.name}, " if any(isinstance(m, TimeNorm) for m in model.modules()) else ""
        self.say(
            f"{recipe.model.name}: {parameters:,} parameters, neuron {recipe.neuron.name}, {norm}"
            f"T = {recipe.data.timesteps}; {where}, {recipe.train.precision}, {kernel} kernel"
        )
        if session.bundle.selection_part != "validation":
            self.say(f"note: {session.bundle.split.record()['selection_text']}", "yellow")
        self.say(f"writing to {session.folder.root}")
        if session.steps:
            self.say(f"continuing at epoch {session.epoch + 1}, step {session.steps}", "green")

    def _columns(self) -> None:
        self._titled = True
        part = self.session.bundle.selection_part
        self.say(f"\nepoch     loss  {self.session.task.title(part)}", "bold")

    # ---- while it runs

    def after_step(self) -> None:
        session = self.session
        self._steps += 1
        if self._steps == 1:
            self._warn_of_silent_layers()
        elif self._steps == 1 + _WARM_UP:
            self.say(memory_line(session, self._held), "dim")
            self._first = time.monotonic()
        elif self._steps == 4 + _WARM_UP and self._first is not None:
            self._say_time((time.monotonic() - self._first) / 3)
        self._move()

    def _move(self) -> None:
        assert self.bar is not None
        session, total, now = self.session, self.session.batches, time.monotonic()
        if session.batch < total and (self.bar.disable or now - self._moved < _OFTEN_ENOUGH):
            return
        self._moved = now
        if self.line is None:
            self.line = self.bar.add_task("", total=total, epoch="", loss="")
        loss = f"{session.losses[-1]:.3f}" if session.losses else ""
        self.bar.update(self.line, completed=session.batch, epoch=f"{session.epoch + 1}/{session.epochs}", loss=loss)
        if session.batch == total:
            self.bar.remove_task(self.line)
            self.line = None

    def _warn_of_silent_layers(self) -> None:
        if self.session.steps <= 1:
            counts = self.session.watch.active.tolist()
            quiet = {name: 0.0 for name, (fired, seen) in zip(self.session.watch.layers, counts) if seen and not fired}
            for check in dead_layers(quiet):
                self.say(f"warning: at the first step, {check.message}", "yellow")

    def _say_time(self, step: float) -> None:
        session = self.session
        epoch, left = step * session.steps_per_epoch, session.epochs - session.epoch
        self.say(
            f"time: about {duration(epoch)} an epoch and {duration(epoch * left)} in all, without evaluation"
            f"{loaded_machine()}",
            "dim",
        )

    def after_epoch(self) -> None:
        session = self.session
        self._say_messages()
        if not self._titled:
            self._columns()
        scores, best = session.task.last_eval, session.best.epoch == session.epoch + 1
        evaluated = scores.line() if scores is not None else ""
        took, self._epoch_start = duration(time.monotonic() - self._epoch_start), time.monotonic()
        train = session.train_scores
        assert train is not None
        self.say(
            f"{session.epoch + 1:5d}  {train.loss:7.4f}  {session.task.train_line(train)}"
            f"  {evaluated}  {'best' if best else '    '}  {took}"
        )

    def _say_messages(self) -> None:
        for message in self.session.messages:
            self.say(f"warning: {message}", "yellow")
        self.session.messages.clear()

    # ---- the end

    def close(self, failed: bool) -> None:
        self._say_messages()
        if self.bar is not None:
            self.bar.stop()  # show the cursor again


def loaded_machine() -> str:
    """Returns a remark for an estimate of time if other programs use the processors too; otherwise an empty text.

    The load of the last minute includes this program's own threads, so a little more than the cores is normal.
    """
    try:
        load, cores = os.getloadavg()[0], len(os.sched_getaffinity(0))
    except (OSError, AttributeError):
        return ""
    if load <= 1.25 * cores:
        return ""
    return (
        f"; other programs keep this machine busy (load {load:.1f} on {cores} cores), so the estimate may be too long"
    )


def memory_line(session: Session, before: int) -> str:
    """Returns the memory that must be free for this run, estimated after its first steps.

    before: bytes that the process used before the first step
    """
    each = " for each process" if session.processes.count > 1 else ""
    most = max(before, memory_held()[1])
    if session.device.type == "cuda":
        reserved = torch.cuda.max_memory_reserved(session.device)
        return f"memory: about {size(reserved)} on the GPU and {size(most)} must be free in addition{each}"
    return (
        f"memory: about {size(most)} must be free{each}: {size(before)} used before training, {size(most - before)} "
        "more in the first steps"
    )
