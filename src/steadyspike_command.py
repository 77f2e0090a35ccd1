"""The command ``steadyspike``, outside the package: it starts before torch is imported, which takes seconds."""

from __future__ import annotations

import os
import signal
from types import FrameType


def main() -> None:
    """Runs the command line; ctrl-C during its imports ends it with exit code 130 and without a traceback."""
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.SIG_IGN:  # as under nohup
        signal.signal(signal.SIGINT, _end)
    from steadyspike.cli import main as command

    signal.signal(signal.SIGINT, before)
    command()


def _end(number: int, frame: FrameType | None) -> None:
    os._exit(128 + number)
