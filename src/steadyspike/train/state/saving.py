"""Writes checkpoints with everything that a run needs to continue exactly, and restores them.

A checkpoint is taken at one of three points, which ``batch`` distinguishes:

- between two optimizer steps of an epoch (0 < batch < all);
- after the last step of an epoch, if a signal stops its evaluation (batch = all);
- between two epochs (batch = 0), when evaluation and tables of the old one are done.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch

from steadyspike.train.files.checkpoint import FORMAT, keep_best, save_checkpoint
from steadyspike.train.state.processes import of_all
from steadyspike.train.state.session import Best, Session


def checkpoint(session: Session, rng: dict[str, Any]) -> dict[str, Any]:
    """Returns the content of a checkpoint; every process must call it."""
    best = session.best
    return {
        "format": FORMAT,
        "identity": session.identity(),
        "epoch": session.epoch,
        "batch": session.batch,
        "step": session.steps,
        "state_dict": session.task.model.state_dict(),
        "average": session.average.state() if session.average is not None else None,
        "optimizer": session.optimizer.state_dict(),
        "schedule": session.schedule.state_dict(),
        "precision": session.scaler.state_dict(),
        "loader": session.data.train_loader.state_dict(),
        "ranks": of_all({"rng": rng, "sums": session.accumulators()}),
        "files": {name: table.sync() for name, table in session.tables.items()},
        "best": [best.epoch, best.accuracy, best.loss],
        "lost_epochs": session.lost_epochs,
    }


def save(session: Session, rng: dict[str, Any] | None = None) -> None:
    """Writes last.ckpt, and best.ckpt if the epoch that ended is the best; every process must call it.

    rng: the random generators to continue with, if not the current ones
    """
    state = checkpoint(session, rng or rng_state())
    session.saved_step = session.steps
    if session.processes.first:
        save_checkpoint(state, session.folder.last)
        if session.batch == 0 and session.best.epoch == session.epoch > 0:
            keep_best(session.folder)


def restore(session: Session, state: dict[str, Any]) -> None:
    """Restores a checkpoint into the session, except the random generators (`restore_random`), which come last."""
    session.epoch, session.batch, session.steps = state["epoch"], state["batch"], state["step"]
    session.saved_step = session.steps
    session.task.model.load_state_dict(state["state_dict"])
    if session.average is not None:
        session.average.restore(state["average"])
    session.optimizer.load_state_dict(state["optimizer"])
    session.schedule.load_state_dict(state["schedule"])
    if state["precision"]:
        session.scaler.load_state_dict(state["precision"])
    session.best, session.lost_epochs = Best(*state["best"]), int(state["lost_epochs"])
    session.data.train_loader.load_state_dict(state["loader"])
    if session.batch:
        session.restore_accumulators(state["ranks"][session.processes.rank]["sums"])
    if session.processes.first and session.batch == 0 and session.best.epoch == session.epoch > 0:
        keep_best(session.folder)  # the run may have been killed before this was written


def restore_random(session: Session, state: dict[str, Any]) -> None:
    """Restores the random generators of this process, after everything else that might draw from them."""
    set_rng_state(state["ranks"][session.processes.rank]["rng"])


def rng_state() -> dict[str, Any]:
    """Returns the states of Python's, NumPy's and torch's generators, and those of all CUDA devices."""
    # NumPy's old global generator, because users' code may draw from it.
    name, keys, position, has_gauss, gauss = np.random.get_state(legacy=True)  # noqa: NPY002
    version, internal, following = random.getstate()
    return {
        "python": [version, list(internal), following],
        "numpy": [str(name), torch.from_numpy(np.array(keys, np.int64)), int(position), int(has_gauss), float(gauss)],
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
    }


def set_rng_state(state: dict[str, Any]) -> None:
    """Restores a state of `rng_state`."""
    version, internal, following = state["python"]
    random.setstate((version, tuple(internal), following))
    name, keys, position, has_gauss, gauss = state["numpy"]
    np.random.set_state((name, keys.numpy().astype(np.uint32), position, has_gauss, gauss))  # noqa: NPY002
    torch.set_rng_state(state["torch"])
    if state["cuda"] and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(state["cuda"])


def seed_all(seed: int, rank: int = 0) -> None:
    """Seeds every generator; ranks draw different dropout masks."""
    mixed = (seed * 1_000_003 + rank) % 2**32
    random.seed(mixed)
    np.random.seed(mixed)  # noqa: NPY002
    torch.manual_seed(mixed)
