"""Finds the checkpoint from which a run continues, and checks before training that everything it needs exists."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from steadyspike.train.build.optimizer import build_optimizer, build_schedule
from steadyspike.train.files.atomic import link
from steadyspike.train.files.checkpoint import keep_best, latest, read_best
from steadyspike.train.files.folder import DamagedRun
from steadyspike.train.files.tables import extent_problem
from steadyspike.train.run.recorder import table_names
from steadyspike.train.state.saving import rng_state, set_rng_state
from steadyspike.train.state.session import Session

_KINDS: dict[str, tuple[type, ...]] = {
    "epoch": (int,), "batch": (int,), "step": (int,), "state_dict": (dict,), "average": (dict, type(None)),
    "optimizer": (dict,), "schedule": (dict,), "precision": (dict,), "loader": (dict,),
    "ranks": (list,), "files": (dict,), "best": (list,), "lost_epochs": (int,),
}  # fmt: skip


def continue_from(session: Session) -> list[str]:
    """Sets ``session.resumed`` to the newest usable checkpoint; returns a note for the user.

    Everything that would otherwise fail later is checked here: the content of the checkpoint, the tables that it
    continues, and the checkpoint of the best epoch.
    """
    folder, identity, first = session.folder, session.identity(), session.processes.first
    checkpoint = latest(folder.last, identity, lambda state: content_problem(session, state))
    session.resumed = checkpoint.state
    if checkpoint.state is None:
        if folder.has_results():
            raise DamagedRun(
                f"{folder.root} contains results but no checkpoint: {folder.last.name} is missing, so there is "
                "nothing to continue from; delete the folder, or choose another with --out, to start again"
            )
        return [f"there is no checkpoint in {folder.root} yet: starting from the beginning"]
    if first and checkpoint.path != folder.last:
        # This is checked before anything is written; otherwise the next checkpoint would replace this one by the
        # damaged file.
        link(checkpoint.path, folder.last)
    best, at_end_of_epoch = int(checkpoint.state["best"][0]), checkpoint.state["batch"] == 0
    if best > 0:
        if at_end_of_epoch and best == checkpoint.state["epoch"]:
            if first:
                keep_best(folder)  # this checkpoint is the best one itself
        else:
            read_best(folder, best, identity)
    return [f"refused a checkpoint: {reason}; continuing from the previous one" for reason in checkpoint.refused]


def content_problem(session: Session, state: dict[str, Any]) -> str | None:
    """Returns why an undamaged checkpoint cannot continue this run; None if it can."""
    for key, kinds in _KINDS.items():
        if key not in state:
            return f"it has no {key}"
        if not isinstance(state[key], kinds):
            return f"its {key} is of type {type(state[key]).__name__}"
    checks = (_weights_problem, _optimizer_problem, _ranks_problem, _position_problem, _files_problem)
    try:
        return next((text for check in checks if (text := check(session, state)) is not None), None)
    except Exception as error:  # a trial restore: any error means that this state cannot be restored
        return f"{type(error).__name__} in a trial of restoring it"


def _weights_problem(session: Session, state: dict[str, Any]) -> str | None:
    here = session.task.model.state_dict()
    if (session.average is None) != (state["average"] is None):
        return "it has a weight average but this run has none, or the other way round"
    for key in ("state_dict", "average"):
        if state[key] is not None and (text := _tensor_problem(here, state[key])) is not None:
            return f"{key}: {text}"
    return None


def _tensor_problem(expected: dict[str, Tensor], actual: dict[str, Any]) -> str | None:
    if expected.keys() != actual.keys():
        return f"{sorted(expected.keys() ^ actual.keys())[0]!r} is missing or not part of the network"
    for name, tensor in expected.items():
        there = actual[name]
        if not isinstance(there, Tensor) or (there.shape, there.dtype) != (tensor.shape, tensor.dtype):
            return f"{name!r} is not a tensor of shape {tuple(tensor.shape)} and type {tensor.dtype}"
    return None


def _optimizer_problem(session: Session, state: dict[str, Any]) -> str | None:
    optimizer = build_optimizer(session.recipe.optimizer, session.task.model)
    schedule = build_schedule(session.recipe, optimizer, 1)
    if schedule.state_dict().keys() != state["schedule"].keys():
        return "its schedule has other entries"
    groups = state["optimizer"]["param_groups"]
    if any(group.keys() != there.keys() for group, there in zip(optimizer.param_groups, groups)):
        return "its optimizer has other settings"
    optimizer.load_state_dict(state["optimizer"])
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            for name, value in optimizer.state.get(parameter, {}).items():
                if isinstance(value, Tensor) and value.dim() > 0 and value.shape != parameter.shape:
                    return f"the optimizer's {name} has another shape than its parameter"
    return None


def _ranks_problem(session: Session, state: dict[str, Any]) -> str | None:
    if len(state["ranks"]) != session.processes.count:
        return f"it was written by {len(state['ranks'])} processes"
    before, sums = rng_state(), session.accumulators()
    try:
        for mine in state["ranks"]:
            set_rng_state(mine["rng"])
            if (text := _same_kind(sums, mine["sums"])) is not None:
                return f"its sums: {text}"
    finally:
        set_rng_state(before)
    return None


def _same_kind(expected: dict[str, Any], actual: dict[str, Any]) -> str | None:
    for key, value in expected.items():
        there = actual[key]
        if type(value) is not type(there) or (isinstance(value, Tensor) and value.shape != there.shape):
            return f"{key} has another type or shape"
    return None


def _position_problem(session: Session, state: dict[str, Any]) -> str | None:
    epoch, *scores = state["best"]
    numbers = 1 <= len(scores) <= 2 and all(type(score) is float for score in scores)  # earlier runs stored no loss
    if type(epoch) is not int or not numbers or not 0 <= epoch <= state["epoch"]:
        return f"its best epoch is {state['best']}"
    if min(state["epoch"], state["batch"], state["step"]) < 0 or state["batch"] > session.batches:
        return "its position does not exist in this run"
    session.data.train_loader.load_state_dict(state["loader"])
    return None


def _files_problem(session: Session, state: dict[str, Any]) -> str | None:
    if state["files"].keys() != table_names(session.task):
        return f"it has the tables {', '.join(sorted(state['files']))}"
    for name, extent in state["files"].items():
        if type(extent["length"]) is not int or extent["length"] < 0:
            return f"its length of {name}.csv is {extent['length']!r}"
        if (text := extent_problem(session.folder.root / f"{name}.csv", extent)) is not None:
            return text
    return None
