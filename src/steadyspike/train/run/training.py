"""One run, from recipe to result: `train` starts or continues it in this process."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from steadyspike.data.sources import worker_ended
from steadyspike.train.build.data import RunData
from steadyspike.train.files.atomic import CheckpointError
from steadyspike.train.files.folder import RunFolder
from steadyspike.train.recipe import Recipe
from steadyspike.train.run.accelerator import device_of
from steadyspike.train.run.conclusion import conclude, interrupted, write_about
from steadyspike.train.run.health_policy import HealthWatch
from steadyspike.train.run.loop import Loop
from steadyspike.train.run.recorder import Recorder, open_tables
from steadyspike.train.run.resuming import continue_from
from steadyspike.train.state.processes import Processes, join_group
from steadyspike.train.state.saving import seed_all
from steadyspike.train.state.session import EndOfRun, Observer, Session
from steadyspike.train.state.signals import Signals, Stopped

Display = Callable[[Session, list[str]], Observer]


def train(
    recipe: Recipe,
    folder: RunFolder,
    *,
    data_dir: Path | None = None,
    resume: bool = False,
    processes: Processes = Processes(),  # noqa: B008
    display: Display | None = None,
    signals: Signals | None = None,
    after_epoch: Callable[[], None] | None = None,
) -> dict[str, Any]:
    """Trains, or continues, the recipe in ``folder``; returns the content of result.json (rank 0; others: the status).

    display: a factory ``display(session, notes) -> Observer`` for the screen
    after_epoch: called after epochs, so rarely that it takes at most 1 % of the time (rank 0)


    SIGTERM and SIGINT end the run with status "interrupted", at any point.
    """
    started, rank = time.monotonic(), processes.rank
    with signals or Signals() as signals:
        try:
            data_folder = data_dir or (folder.data_dir() if resume else None)
            device = device_of(recipe, processes.local)
            data = RunData(recipe, data_folder, rank=rank, world_size=processes.count, device=device)
            session = Session.new(recipe, folder, data, processes)
            session.signals = signals
            notes = continue_from(session) if resume else []
            if processes.first:
                folder.write_recipe(recipe)
                write_about(session, data_dir)
            seed_all(recipe.train.seed, rank)
            ended = _fit(session, display, notes, after_epoch)
            if ended is not None and ended.status == "interrupted":
                return interrupted(recipe, folder, signals.number or signal.SIGTERM, ended.message, rank)
            signals.now("in the test evaluation")
            if not processes.first:
                return {"status": ended.status if ended else "finished"}
            return conclude(session, ended, time.monotonic() - started)
        except Stopped as stop:
            return interrupted(recipe, folder, stop.number, signals.where, rank)
        except Exception as error:
            if signals.number is None:
                if (told := worker_ended(error)) is not None:
                    raise told from None
                raise
            # An error after a signal is caused by the signal: other processes of the run got it, too.
            text = f"{signals.where} ({type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''})"
            return interrupted(recipe, folder, signals.number, text, rank)


def _fit(
    session: Session, display: Display | None, notes: list[str], look: Callable[[], None] | None
) -> EndOfRun | None:
    """Trains; returns None after the last epoch, or how the run ended before it."""
    first, extents = session.processes.first, session.resumed["files"] if session.resumed is not None else None
    if first:
        session.tables = open_tables(session.folder.root, session.task, session.bundle.selection_part, extents)
    observers = [
        *(session.task.observers(session) if first else []),
        *([display(session, notes)] if display is not None and first else []),
    ]
    sparing = Sparingly(look, lambda text: session.messages.append(f"no report: {text}")) if look and first else None
    try:
        join_group(session.processes, session.device)
        loop = Loop(session, Recorder(session), HealthWatch(session), observers, sparing or (lambda: None))
        loop.run()
        ended = None
    except EndOfRun as early:
        ended = early
    except BaseException:
        for table in session.tables.values():
            with suppress(CheckpointError):  # the first error is the one to report
                table.close()
        raise
    finally:
        session.watch.close()
    for name, table in session.tables.items():
        session.extents[name] = table.sync()
        table.close()
    return ended


SHARE = 0.01  # largest share of the time
_GUESS = 0.2  # assumed seconds of the first call


class Sparingly:
    """``sparingly()`` calls ``look`` if all calls together then have taken at most `SHARE` of the time since the start.

    A call is assumed to take as long as the last one. If the first call took longer than assumed, the next one is
    delayed.

    Exceptions in ``look`` are reported once through ``tell`` and otherwise ignored.
    """

    def __init__(
        self, look: Callable[[], None], tell: Callable[[str], None], clock: Callable[[], float] = time.monotonic
    ):
        self._look, self._tell, self._clock = look, tell, clock
        self._began, self._cost, self._spent, self._told = clock(), _GUESS, 0.0, False

    def __call__(self) -> bool:
        """Returns whether it was called."""
        start = self._clock()
        if self._spent + self._cost > SHARE * (start - self._began):
            return False
        try:
            self._look()
        except Exception as error:
            if not self._told:
                self._tell(f"{type(error).__name__}: {error}")
            self._told = True
        self._cost = self._clock() - start
        self._spent += self._cost
        return True
