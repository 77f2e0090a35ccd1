"""SIGTERM and SIGINT ask a run to save and stop; a second SIGINT stops it at once."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any


class Signals:
    """``with Signals() as asked:`` then ``asked()`` is True once one has come; idle outside the main thread."""

    WATCHED = (signal.SIGTERM, signal.SIGINT)

    def __init__(self) -> None:
        self._asked = False
        self._before: dict[signal.Signals, Any] = {}

    def __call__(self) -> bool:
        return self._asked

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._asked and number == signal.SIGINT:
            raise KeyboardInterrupt
        self._asked = True

    def install(self) -> None:
        """Also called when training starts, since the trainer sets handlers of its own."""
        if threading.current_thread() is threading.main_thread():
            for number in self.WATCHED:
                before = signal.signal(number, self._handle)
                self._before.setdefault(number, before)

    def __enter__(self) -> Signals:
        self.install()
        return self

    def __exit__(self, *_: Any) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
