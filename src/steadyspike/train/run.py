"""One run, from recipe to result: `train` starts or continues it in this process."""

from __future__ import annotations

import inspect
import logging
import signal
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.plugins.environments import LightningEnvironment, TorchElasticEnvironment
from lightning.pytorch.strategies import DDPStrategy

from steadyspike.train.bf16 import bf16_problem
from steadyspike.train.checkpoint import AtomicCheckpointIO, CheckpointError, latest, read_checkpoint
from steadyspike.train.data import SpikingData
from steadyspike.train.ema import WeightAverage
from steadyspike.train.evaluate import evaluate_part, load_weights, save_weights
from steadyspike.train.folder import RunError, RunFolder, environment
from steadyspike.train.health import HealthWatch
from steadyspike.train.keep import Keeper, identity
from steadyspike.train.light import Together, Untimed
from steadyspike.train.measure import GradientWatch, LayerWatch
from steadyspike.train.module import SpikingTask
from steadyspike.train.recipe import Recipe, RecipeError
from steadyspike.train.record import Recorder, open_tables
from steadyspike.train.rng import seed_all
from steadyspike.train.session import EndOfRun, Session
from steadyspike.train.signals import Signals, Stopped

_PRECISION: dict[str, Any] = {"fp32": "32-true", "bf16": "bf16-mixed", "fp16": "16-mixed"}
_CHATTY = ("lightning.pytorch", "lightning.fabric", "pytorch_lightning", "lightning")
_NOISE = (".*LeafSpec.*", ".*isinstance.*treespec.*", ".*does not have many workers.*", ".*IterableDataset.*__len__.*")


@dataclass(frozen=True)
class Processes:
    """How many processes this run has, and where: ``devices`` on each of ``nodes``."""

    devices: int = 1
    nodes: int = 1

    @property
    def count(self) -> int:
        return self.devices * self.nodes


def accelerator_of(recipe: Recipe) -> str:
    """ "gpu" or "cpu"; an explicit wish that cannot be met is an error."""
    wish = recipe.train.accelerator
    if wish == "gpu" and not torch.cuda.is_available():
        raise RecipeError("train.accelerator = 'gpu', but torch sees no GPU here")
    found = "gpu" if wish != "cpu" and torch.cuda.is_available() else "cpu"
    if found == "cpu" and recipe.train.precision == "fp16":
        raise RecipeError("train.precision = 'fp16' needs a GPU; on the CPU use 'fp32' or 'bf16'")
    if found == "cpu" and recipe.train.precision == "bf16" and (problem := bf16_problem()) is not None:
        raise RecipeError(f"train.precision = 'bf16': {problem}")
    if found == "gpu" and recipe.train.devices > torch.cuda.device_count():
        raise RecipeError(f"train.devices = {recipe.train.devices}, but there are {torch.cuda.device_count()} GPUs")
    return found


class _Waiting(Callback):
    """From the start of training on, signals wait for the end of a step."""

    def __init__(self, signals: Signals) -> None:
        self.signals = signals

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.signals.wait("in training")


def _ddp() -> DDPStrategy:
    """Without rank 0's buffers being broadcast at every step: norms and MP-Init synchronise their statistics."""
    new = "forward_sync_buffers" in inspect.signature(torch.nn.parallel.DistributedDataParallel.__init__).parameters
    options: dict[str, Any] = {"forward_sync_buffers" if new else "broadcast_buffers": False}
    return DDPStrategy(**options)


def make_trainer(recipe: Recipe, processes: Processes, callbacks: list[Callback], evaluates: bool = True) -> Trainer:
    """A Lightning Trainer with the recipe's devices, precision, clipping and accumulation, and nothing on its own.

    evaluates: False where the split keeps no part for model selection.
    """
    many = processes.count > 1
    # Said outright, or Lightning would take a Slurm job's task count for this run's.
    torchrun = TorchElasticEnvironment.detect()
    trainer = Trainer(
        accelerator=accelerator_of(recipe),
        devices=processes.devices,
        num_nodes=processes.nodes,
        strategy=_ddp() if many else "auto",
        precision=_PRECISION[recipe.train.precision],
        max_epochs=recipe.schedule.epochs,
        gradient_clip_val=recipe.train.clip or None,
        accumulate_grad_batches=recipe.train.accumulate,
        check_val_every_n_epoch=recipe.train.eval_every,
        num_sanity_val_steps=0,
        limit_val_batches=None if evaluates else 0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
        callbacks=[Together(callbacks)],
        profiler=Untimed(),
        plugins=[AtomicCheckpointIO(), TorchElasticEnvironment() if torchrun else LightningEnvironment()],
    )
    # Its own handler would talk to other processes from inside a signal; `Signals` does what is to be done.
    trainer._signal_connector.register_signal_handlers = lambda: None  # type: ignore[method-assign]
    return trainer


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
) -> dict[str, Any]:
    """Trains, or continues, the recipe in ``folder`` and returns what result.json says (rank 0; others: the status).

    display: a factory ``display(session, notes) -> Callback`` for what people see. SIGTERM and SIGINT end the run with
    status "interrupted", wherever it is.
    """
    started = time.monotonic()
    with signals or Signals() as signals:
        try:
            data = SpikingData(recipe, data_dir)
            data.batch_per_process(processes.count)
            session = new_session(recipe, folder, data)
            session.signals = signals
            notes = _continue(session, processes.count) if resume else []
            if rank == 0:
                folder.write_recipe(recipe)
                if session.resumed is None:
                    folder.write_json("run.json", _about(session, processes.count))
            seed_all(recipe.train.seed, rank)
            with quietly():
                ended = _fit(session, processes, rank, display, notes)
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
                raise
            # What breaks after a signal broke because of it: helpers and other processes got it too.
            text = f"{signals.where} ({type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''})"
            return interrupted(recipe, folder, signals.number, text, rank)


def interrupted(recipe: Recipe, folder: RunFolder, number: int, where: str, rank: int = 0) -> dict[str, Any]:
    """The result of a run that a signal stopped; its folder can be resumed however far it came."""
    result = {"status": "interrupted", "signal": int(number), "where": where}
    if rank == 0:
        if not (folder.root / "recipe.toml").exists():
            folder.write_recipe(recipe)
        folder.write_json("result.json", result)
    return result


def _continue(session: Session, processes: int) -> list[str]:
    """Finds the checkpoint to continue from; what there is to say about it."""
    folder = session.folder
    session.resumed, refused = latest(folder.last, identity(session, processes))
    if session.resumed is None:
        if folder.has_results():
            raise RunError(
                f"{folder.root} holds results but no checkpoint: {folder.last.name} is gone, so there is nothing to "
                "continue from; delete the folder, or choose another with --out, to start again"
            )
        return [f"there is no checkpoint in {folder.root} yet: starting from the beginning"]
    return [f"refused a checkpoint: {reason}; continuing from the one before" for reason in refused]


def new_session(recipe: Recipe, folder: RunFolder, data: SpikingData) -> Session:
    """Network, data and measures of a run that has not started."""
    task = SpikingTask.for_data(recipe, data.bundle)
    average = WeightAverage(task.model, recipe.train.ema) if recipe.train.ema else None
    watch = LayerWatch(task.model, recipe.data.timesteps)
    return Session(recipe, folder, task, data, watch, GradientWatch(task.model), average)


def _fit(session: Session, processes: Processes, rank: int, display: Any, notes: list[str]) -> EndOfRun | None:
    """The training itself; returns how it ended where that was not after its last epoch."""
    recipe, state = session.recipe, session.resumed
    lengths = state["files"] if state is not None else None
    first = rank == 0
    part = session.bundle.selection_part
    tables = open_tables(session.folder.root, recipe.data.timesteps, part, lengths) if first else {}
    board = session.folder.root / "tensorboard" if first else None
    callbacks: list[Callback] = [
        _Waiting(session.signals),
        *([session.average] if session.average is not None else []),
        Recorder(session, tables, board),
        HealthWatch(session, tables.get("health")),
        *([display(session, notes)] if display is not None and first else []),
        Keeper(session, tables),
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
    for table in tables.values():
        table.sync()
        table.close()
    return ended


def conclude(session: Session, ended: EndOfRun | None, seconds: float) -> dict[str, Any]:
    """Weights, their test accuracy and result.json."""
    folder, recipe = session.folder, session.recipe
    result: dict[str, Any] = {"status": ended.status if ended else "finished", "seconds": round(seconds, 1)}
    if ended is not None:
        result |= {"message": ended.message, "layer": ended.layer}
    source = _final_weights(session, ended, result)
    load_weights(folder.weights, session.task.model)
    scores = evaluate_part(session.task, session.bundle, "test")
    result |= {
        "weights": source,
        "selection": session.bundle.split.record()["selection_text"],
        "split": session.bundle.split.fingerprint,
        "test": scores.record(),
        "best": {"epoch": session.best.epoch, "accuracy": session.best.accuracy} if session.best.epoch else None,
        "seed": recipe.train.seed,
    }
    if recipe.paper is not None:
        result["paper"] = recipe.paper.model_dump(exclude_none=True)
    folder.write_json("result.json", result)
    return result


def _final_weights(session: Session, ended: EndOfRun | None, result: dict[str, Any]) -> str:
    """Writes weights.safetensors and says which weights they are."""
    folder, whole = session.folder, None  # the epoch whose end they are of
    if ended is not None and ended.present:
        state, source = session.task.model.state_dict(), "at the end"
    else:
        best = session.best.epoch > 0
        checkpoint = _read_best(session) if best else read_checkpoint(folder.last)
        state, epoch = checkpoint["average"] or checkpoint["state_dict"], checkpoint["epoch"]
        whole = epoch if checkpoint["batch"] == 0 else None
        source = f"best epoch ({epoch})" if best else f"last checkpoint (epoch {epoch})"
    about = {
        "recipe": session.recipe.model_dump(exclude_none=True, exclude={"paper", "measured"}),
        "split": session.bundle.split.record(),
        "epoch": whole,
    }
    save_weights(folder.weights, state, about)
    return source


def _read_best(session: Session) -> dict[str, Any]:
    """The checkpoint of the best epoch; without it there is no result, since other weights would pass for it."""
    path, epoch = session.folder.best, session.best.epoch
    try:
        if path.exists():
            return read_checkpoint(path)
        problem = f"{path} is missing"
    except CheckpointError as error:
        problem = str(error)
    raise CheckpointError(
        f"{problem}: the best epoch ({epoch}) cannot be tested; restore the file and --resume, or train again elsewhere"
    )


def _about(session: Session, processes: int) -> dict[str, Any]:
    return {
        "environment": environment(),
        "processes": processes,
        "seed": session.recipe.train.seed,
        "data": session.bundle.describe(),
        "parameters": sum(p.numel() for p in session.task.model.parameters()),
    }


@contextmanager
def quietly() -> Iterator[None]:
    """Without what Lightning says about itself."""
    loggers = [logging.getLogger(name) for name in _CHATTY]
    levels = [logger.level for logger in loggers]
    with warnings.catch_warnings():
        for message in _NOISE:
            warnings.filterwarnings("ignore", message=message)
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels):
                logger.setLevel(level)


def leave_group() -> None:
    """Ends the process group, where there is one."""
    import torch.distributed as dist

    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()
