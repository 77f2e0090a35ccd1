"""How far a command is that runs many samples: a line that moves on a terminal, plain lines now and then elsewhere."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterable

from rich.console import Console
from torch import Tensor

from steadyspike.train.callbacks.duration import duration

_SELDOM = 10.0  # seconds between two lines where the output goes to a file or another program


def with_progress(
    batches: Iterable[tuple[Tensor, Tensor]], samples: int, console: Console
) -> Generator[tuple[Tensor, Tensor], None, None]:
    """The batches, and on the console how many of all ``samples`` have been run when the next one is asked for.

    Close it where an error may end the work: the line on a terminal moves until then.
    """
    started = said = time.monotonic()
    done = 0
    with console.status(f"running {samples} samples") as status:
        for x, y in batches:
            yield x, y
            done += len(y)
            now = time.monotonic()
            line = f"{done} of {samples} samples, about {duration((now - started) / done * (samples - done))} left"
            status.update(line)
            if not console.is_terminal and done < samples and now - said >= _SELDOM:
                console.print(line, soft_wrap=True)
                said = now
