"""Starts or continues a run: in this process, in several of this machine, or as one process of torchrun."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from steadyspike.core.heap import keep_freed_memory
from steadyspike.core.torch_private import postpone_compiler
from steadyspike.train.build.data import batch_per_process, load_data
from steadyspike.train.build.dry_run import check_recipe
from steadyspike.train.files.atomic import CheckpointError
from steadyspike.train.files.folder import RunError, RunFolder, new_folder, open_folder, resumable
from steadyspike.train.files.weights import intact_result
from steadyspike.train.recipe import Recipe
from steadyspike.train.recipe.load import ORIGIN
from steadyspike.train.run.accelerator import accelerator_of
from steadyspike.train.run.conclusion import interrupted
from steadyspike.train.run.training import Display, train
from steadyspike.train.state.processes import Processes, die_with_parent, launch, leave_group, under_torchrun
from steadyspike.train.state.signals import Signals, Stopped


@dataclass(frozen=True)
class Order:
    """What to train.

    name: of the recipe, for the folder
    origin: for origin.json
    arguments: those of ``steadyspike train`` that give the same recipe in another process
    """

    recipe: Recipe
    name: str
    origin: dict[str, Any]
    arguments: list[str] = field(default_factory=list)
    data_dir: Path | None = None
    resume: bool = False
    out: Path | None = None


class Started(NamedTuple):
    """result: content of result.json
    before: the run had already ended
    told: another process reports

    folder: of the run
    """

    folder: RunFolder
    result: dict[str, Any]
    before: bool = False
    told: bool = False


Live = Callable[[RunFolder], Callable[[], None] | None]


def start(order: Order, signals: Signals, display: Display | None = None, live: Live = lambda folder: None) -> Started:
    """Trains to the end, or until a signal comes; all checks run before a folder is made.

    live: returns a function that is called after epochs, or None
    """
    recipe = order.recipe
    # The process belongs to this run: large activations need no new pages at every step, and nothing here compiles.
    keep_freed_memory()
    postpone_compiler()
    check_recipe(recipe)
    accelerator_of(recipe)
    here = Processes.of_torchrun() if under_torchrun() else Processes(count=recipe.train.devices)
    batch_per_process(recipe, here.count)
    if under_torchrun():
        return _one_of_several(order, here, signals, display, live)
    folder = open_folder(order.out, order.name) if order.resume else new_folder(order.out, order.name)
    try:
        with folder.locked():
            if (ended := _ended_before(order, folder)) is not None:
                return ended
            if here.count == 1:
                return _alone(order, folder, signals, display, live)
        return _several(order, folder, here.count)
    except Exception:
        if not order.resume and order.out is None:
            folder.remove_if_unused()
        raise


def _ended_before(order: Order, folder: RunFolder) -> Started | None:
    """Returns a run that has ended; None if there is something to resume, or a file to write again."""
    if not order.resume or not (folder.root / "recipe.toml").exists():
        return None
    resumable(folder, order.recipe)
    result = intact_result(folder)
    return None if result is None else Started(folder, result, before=True)


def _write_origin(order: Order, folder: RunFolder) -> None:
    """Writes origin.json, which is only displayed: an error in writing it is reported by the next required file."""
    with suppress(CheckpointError, OSError):
        folder.write_json(ORIGIN, order.origin)


def _alone(order: Order, folder: RunFolder, signals: Signals, display: Display | None, live: Live) -> Started:
    _write_origin(order, folder)
    try:
        result = train(
            order.recipe, folder, data_dir=order.data_dir, resume=order.resume, display=display, signals=signals,
            after_epoch=live(folder),
        )  # fmt: skip
    except Stopped as stop:
        result = interrupted(order.recipe, folder, stop.number, signals.where)
    return Started(folder, result)


def _several(order: Order, folder: RunFolder, devices: int) -> Started:
    """Trains in several processes, each of which is `_one_of_several`; the first of them reports about the run."""
    data_dir = order.data_dir or (folder.data_dir() if order.resume else None)
    load_data(order.recipe.data, data_dir)  # downloads and caches once, before several processes need the data
    (folder.root / "result.json").unlink(missing_ok=True)  # the result of the interrupted run
    data_option = ["--data-dir", str(data_dir)] if data_dir is not None else []
    more = [*data_option, "--out", str(folder.root), *(["--resume"] if order.resume else [])]
    try:
        number = launch(devices, [*order.arguments, *more], folder.root / "logs")
    except RunError:
        # If one process gets a signal, all of them end with its exit code. With a complete result the run succeeded.
        if not folder.intact("result.json"):
            raise
        number = None
    if number is not None and not folder.intact("result.json"):
        where = "in training" if folder.last.exists() else "before the first step"
        return Started(folder, interrupted(order.recipe, folder, number, where))
    return Started(folder, folder.read_json("result.json"), told=True)


def _one_of_several(order: Order, here: Processes, signals: Signals, display: Display | None, live: Live) -> Started:
    if order.out is None:
        raise RunError("under torchrun every process needs the run folder: give it with --out")
    die_with_parent()
    # Only rank 0 checks that the folder is free, because it may already have written to it when the others start.
    folder = new_folder(order.out, order.name) if here.first and not order.resume else RunFolder(order.out)
    if (ended := _ended_before(order, folder)) is not None:
        return ended
    with folder.locked() if here.first else nullcontext():
        if here.first:
            _write_origin(order, folder)
        result = train(
            order.recipe, folder, data_dir=order.data_dir, resume=order.resume, processes=here, display=display,
            signals=signals, after_epoch=live(folder) if here.first else None,
        )  # fmt: skip
    leave_group()
    return Started(folder, result, told=not here.first)
