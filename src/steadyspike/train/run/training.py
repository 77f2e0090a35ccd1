"""One run, from recipe to result: `train` starts or continues it in this process."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback

from steadyspike.data.sources import worker_ended
from steadyspike.train.building.detection_task import task_for
from steadyspike.train.building.lightning_data import SpikingData
from steadyspike.train.callbacks.after_epoch import AfterEpoch
from steadyspike.train.callbacks.average_weights import AverageWeights
from steadyspike.train.callbacks.best_epoch import BestEpoch
from steadyspike.train.callbacks.health_policy import HealthWatch
from steadyspike.train.callbacks.prediction_pictures import PredictionPictures
from steadyspike.train.callbacks.recorder import Recorder, open_tables
from steadyspike.train.callbacks.restoring import CheckpointRestorer
from steadyspike.train.callbacks.saving import CheckpointSaver
from steadyspike.train.callbacks.step_summary import StepSummary
from steadyspike.train.callbacks.stop_on_signal import StopOnSignal
from steadyspike.train.files.atomic import CheckpointError
from steadyspike.train.files.folder import RunFolder
from steadyspike.train.measure.firing_rates import LayerWatch
from steadyspike.train.measure.gradients import GradientWatch
from steadyspike.train.recipe import Recipe
from steadyspike.train.run.conclusion import conclude, interrupted, write_about
from steadyspike.train.run.resuming import continue_from
from steadyspike.train.run.trainer import Processes, make_trainer, quietly
from steadyspike.train.session.random_state import seed_all
from steadyspike.train.session.session import EndOfRun, Session
from steadyspike.train.session.signals import Signals, Stopped
from steadyspike.train.session.weight_average import WeightAverage


def train(
    recipe: Recipe,
    folder: RunFolder,
    *,
    data_dir: Path | None = None,
    resume: bool = False,
    processes: Processes = Processes(),  # noqa: B008
    rank: int = 0,
    display: Any = None,
    signals: Signals | None = None,
    after_epoch: Callable[[], None] | None = None,
) -> dict[str, Any]:
    """Trains, or continues, the recipe in ``folder`` and returns what result.json says (rank 0; others: the status).

    display: a factory ``display(session, notes) -> Callback`` for what people see. after_epoch: called after epochs as
    long as that takes 1 % of the time at most (rank 0). SIGTERM and SIGINT end the run with status "interrupted",
    wherever it is.
    """
    started = time.monotonic()
    with signals or Signals() as signals:
        try:
            data = SpikingData(recipe, data_dir or (folder.data_dir() if resume else None))
            data.batch_per_process(processes.count)
            session = new_session(recipe, folder, data)
            session.signals = signals
            with quietly():
                notes = continue_from(session, processes.count, rank) if resume else []
            if rank == 0:
                folder.write_recipe(recipe)
                write_about(session, processes.count, data_dir)
            seed_all(recipe.train.seed, rank)
            with quietly():
                ended = _fit(session, processes, rank, display, notes, after_epoch)
            if ended is not None and ended.status == "interrupted":
                return interrupted(recipe, folder, signals.number or signal.SIGTERM, ended.message, rank)
            signals.now("in the test evaluation")
            if rank != 0:
                return {"status": ended.status if ended else "finished"}
            return conclude(session, ended, time.monotonic() - started)
        except Stopped as stop:
            return interrupted(recipe, folder, stop.number, signals.where, rank)
        except Exception as error:
            if signals.number is None:
                if (told := worker_ended(error)) is not None:
                    raise told from None
                raise
            # An error after a signal comes from the signal: other processes of the run got it, too.
            text = f"{signals.where} ({type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''})"
            return interrupted(recipe, folder, signals.number, text, rank)


def new_session(recipe: Recipe, folder: RunFolder, data: SpikingData) -> Session:
    """Makes the network and everything else that a new run needs."""
    task = task_for(recipe, data.bundle)
    average = WeightAverage(task.model, recipe.train.ema, recipe.train.ema_ramp) if recipe.train.ema else None
    watch = LayerWatch(task.model, recipe.data.timesteps)
    return Session(recipe, folder, task, data, watch, GradientWatch(task.model), average)


def _fit(
    session: Session, processes: Processes, rank: int, display: Any, notes: list[str], look: Callable[[], None] | None
) -> EndOfRun | None:
    """Trains; returns None after the last epoch, or how the run ended before it."""
    recipe, state = session.recipe, session.resumed
    extents = state["files"] if state is not None else None
    first = rank == 0
    part = session.bundle.selection_part
    tables = open_tables(session.folder.root, session.task, part, extents) if first else {}
    board = session.folder.root / "tensorboard" if first else None
    saver = CheckpointSaver(session, tables)
    callbacks: list[Callback] = [
        StepSummary(session),
        *([AverageWeights(session.average)] if session.average is not None else []),
        Recorder(session, tables, board),
        HealthWatch(session, tables.get("health")),
        BestEpoch(session),
        *([PredictionPictures(session)] if first and recipe.detection is not None else []),
        *([display(session, notes)] if display is not None and first else []),
        saver,
        *([AfterEpoch(session, look)] if look is not None and first else []),
        StopOnSignal(session, saver),
        CheckpointRestorer(session),  # last: what others do at the start must not move the random generators
    ]
    try:
        trainer = make_trainer(recipe, processes, callbacks, evaluates=part is not None)
        trainer.fit(session.task, datamodule=session.data)
        ended = None
    except EndOfRun as early:
        ended = early
    except BaseException:
        for table in tables.values():
            with suppress(CheckpointError):  # the first error is the one to tell
                table.close()
        raise
    finally:
        session.watch.close()
    for name, table in tables.items():
        session.extents[name] = table.sync()
        table.close()
    return ended
