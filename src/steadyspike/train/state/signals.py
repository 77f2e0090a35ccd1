"""Handles SIGTERM and SIGINT: a run stops at once, or at the next safe point while it trains."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, NoReturn

WATCHED = (signal.SIGTERM, signal.SIGINT)
_SHOW_CURSOR = b"\x1b[?25h"  # a progress bar hides it


class Stopped(BaseException):
    """Raised by a signal that stops the run at once; a BaseException, so ``except Exception`` lets it through."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def exit_code(number: int) -> int:
    """Returns the exit code of a process that a signal ended, as shells define it: 130 for SIGINT, 143 for SIGTERM."""
    return 128 + number


class Signals:
    """A context manager that handles SIGTERM and SIGINT; it does nothing outside the main thread.

    A signal raises `Stopped` at once. After ``wait()`` it is only stored; ``signals()`` returns whether one came.

    where: what the program is doing, for the message
    commands: a second SIGINT calls everything in ``at_once`` and ends the process; without it, it raises
        KeyboardInterrupt
    """

    def __init__(self, *, commands: bool = False) -> None:
        self.commands, self.where = commands, "before the first step"
        self.number: int | None = None
        self.at_once: list[Callable[[], None]] = []
        self._waits = False
        self._depth, self._process = 0, os.getpid()
        self._before: dict[signal.Signals, Any] = {}

    def __call__(self) -> bool:
        return self.number is not None

    def wait(self, where: str) -> None:
        """From here on, signals are stored until they are queried."""
        self.where, self._waits = where, True

    def now(self, where: str) -> None:
        """From here on, a signal stops the run at once, also one that came after `wait`."""
        self.where, self._waits = where, False
        if self.number is not None:
            raise Stopped(self.number)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        # in a forked child process, such as one that decodes images, the parent decides
        if os.getpid() != self._process:
            if number == signal.SIGTERM:
                os._exit(exit_code(number))
            return
        if self.number is not None:
            if number == signal.SIGINT:
                self._end_at_once()
            return
        self.number = number
        if not self._waits:
            raise Stopped(number)

    def _end_at_once(self) -> NoReturn:
        if not self.commands:
            raise KeyboardInterrupt
        for do in self.at_once:
            do()
        if sys.stdout.isatty():
            os.write(1, _SHOW_CURSOR)
        os.write(2, b"\nended at once by a second ctrl-C; --resume continues from the last checkpoint\n")
        os._exit(exit_code(signal.SIGINT))

    def __enter__(self) -> Signals:
        self._depth += 1
        if self._depth == 1 and threading.current_thread() is threading.main_thread():
            self._process = os.getpid()
            self._before = {number: signal.signal(number, self._handle) for number in WATCHED}
        return self

    def __exit__(self, *_: Any) -> None:
        self._depth -= 1
        if self._depth == 0:
            for number, handler in self._before.items():
                signal.signal(number, handler)
            self._before = {}
