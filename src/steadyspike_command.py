"""The command ``steadyspike``, outside the package: it starts before torch is imported, which takes seconds."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType


def main() -> None:
    """Runs the command line; ctrl-C during its imports ends it with exit code 130 and without a traceback."""
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.SIG_IGN:  # as under nohup
        signal.signal(signal.SIGINT, _end)
    try:
        from steadyspike.cli import main as command
    except ModuleNotFoundError as error:
        _without(error)
    else:
        signal.signal(signal.SIGINT, before)
        command()


def _without(error: ModuleNotFoundError) -> None:
    """`doctor` with torch alone; every other command prints one line with what to install."""
    from steadyspike.extras import advice

    if (text := advice(error, "the command line")) is None:
        raise error
    if sys.argv[1:] != ["doctor"]:
        sys.exit(f"error: {text}")
    from steadyspike.commands.shared.diagnosis import print_plainly

    print_plainly()
    print(f"\n{text}")


def _end(number: int, frame: FrameType | None) -> None:
    os._exit(128 + number)
