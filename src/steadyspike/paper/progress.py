"""Progress of a list of runs: the current run, its progress, and the estimated time for the rest."""

from __future__ import annotations

import time
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from steadyspike.paper.work.planned_run import Run
from steadyspike.train.run.display import duration
from steadyspike.train.state.session import Observer, Session


class Clock:
    """Finished work and time: the rest is estimated only from work that this call did itself."""

    def __init__(self, runs: list[Run]) -> None:
        self.total = sum(run.work() for run in runs)
        self.done = 0.0  # work of the runs that have ended
        self.now = 0.0  # work of the current run
        self.before = 0.0  # work that earlier calls did on runs that are now continued
        self.started = time.monotonic()

    def left(self) -> str:
        """Returns ``"3 min 20 s left"``; empty as long as there is no estimate."""
        done = self.done + self.now
        own, spent = done - self.before, time.monotonic() - self.started
        if own <= 0 or spent < 1:
            return ""
        return f"{duration(spent / own * max(self.total - done, 0.0))} left"


class Screen:
    """Prints one line per run that ended, and on a terminal a bar for the current run."""

    def __init__(self, console: Console, runs: list[Run], finished: int) -> None:
        self.console, self.clock = console, Clock(runs)
        self.count, self.finished = len(runs), finished
        self.number = 0
        self.bar = Progress(
            TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:.0f} %  {task.fields[left]}"),
            console=console, transient=True, disable=not console.is_terminal,
        )  # fmt: skip
        self.line: TaskID | None = None

    def start(self, run: Run) -> None:
        self.number += 1
        self.clock.now = 0.0
        if self.line is not None:
            self.bar.remove_task(self.line)
        text = f"run {self.number} of {self.count}: {run.label}"
        self.line = self.bar.add_task(text, total=1.0, left=self.clock.left())
        self.bar.start()

    def resume(self, run: Run, share: float) -> None:
        """Sets how far the current run was when it was continued."""
        self.clock.before += run.work() * share
        self.clock.now = run.work() * share

    def move(self, run: Run, share: float) -> None:
        self.clock.now = run.work() * share
        if self.line is not None:
            self.bar.update(self.line, completed=share, left=self.clock.left())

    def end(self, run: Run, text: str) -> None:
        self.clock.done += run.work()
        self.clock.now = 0.0
        left = self.clock.left() if self.number < self.count else ""
        line = f"[{self.number}/{self.count}] {run.label}: {text}" + (f"; {left}" if left else "")
        self.console.print(line, markup=False, soft_wrap=True)

    def close(self) -> None:
        self.bar.stop()

    def watch(self, run: Run) -> Any:
        """The factory of a callback that `train` takes as ``display``."""
        return lambda session, notes: Watch(self, run, session)


class Watch(Observer):
    """Moves the bar while a run trains."""

    def __init__(self, screen: Screen, run: Run, session: Session) -> None:
        self.screen, self.run, self.session = screen, run, session
        self._last = 0.0

    def start(self) -> None:
        self.screen.resume(self.run, self._share())

    def _share(self) -> float:
        return min(self.session.steps / max(self.session.epochs * self.session.steps_per_epoch, 1), 1.0)

    def after_step(self) -> None:
        now = time.monotonic()
        if now - self._last > 0.5:
            self._last = now
            self.screen.move(self.run, self._share())
