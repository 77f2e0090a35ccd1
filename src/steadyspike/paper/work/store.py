"""Stores results, runs and measurements by a key of their settings, so that nothing runs twice."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steadyspike.paper.work.planned_run import Run, key_of
from steadyspike.train.files.atomic import write_atomically
from steadyspike.train.files.folder import RunError, RunFolder
from steadyspike.train.files.weights import intact_result

Arrays = dict[str, NDArray[Any]]
_MARK = b"steadyspike:sha256:"
_END = len(_MARK) + 32


def scores_of(test: dict[str, Any]) -> list[float]:
    """Returns the accuracy after 1..T steps in percent; for a detector [mAP at .5:.95, mAP at .5]."""
    return list(test["accuracy"]) if "accuracy" in test else [test["AP"], test["AP50"]]


@dataclass(frozen=True)
class Result:
    """A run that has ended; ``accuracy`` after 1..T steps on the test part, in percent (detectors: `scores_of`)."""

    run: Run
    folder: Path
    status: str
    accuracy: list[float]

    @property
    def finished(self) -> bool:
        return self.status == "finished"


@dataclass(frozen=True)
class Store:
    """A folder of runs (``runs/``) and of measurements on them (``measured/``)."""

    root: Path

    def folder(self, run: Run) -> RunFolder:
        return RunFolder(self.root / "runs" / f"{run.recipe}-seed{run.seed}-{run.key()[:8]}")

    def put_aside(self, folder: RunFolder) -> Path:
        """Moves a run folder out of ``runs/``, so that the run starts again; returns its new path."""
        (self.root / "damaged").mkdir(exist_ok=True)
        target = free = self.root / "damaged" / folder.root.name
        number = 1
        while free.exists():
            number += 1
            free = target.with_name(f"{target.name}-{number}")
        folder.root.rename(free)
        return free

    def result(self, run: Run) -> Result | None:
        """Returns the result of a run that has ended; None if it has not run, was interrupted or is damaged.

        The folder's name alone is not trusted, because a renamed folder would hold the numbers of another
        configuration.
        """
        for folder in self._folders(run):
            if _is_of(folder, run) and (stored := intact_result(folder)) is not None:
                return Result(run, folder.root, stored["status"], scores_of(stored["test"]))
        return None

    def _folders(self, run: Run) -> Iterator[RunFolder]:
        """Returns the folders in which a run may be.

        These are its own folder, that of another recipe with the same key, and one of its recipe with the key of an
        earlier version.
        """
        own = self.folder(run).root
        yield RunFolder(own)
        names = (f"*-seed{run.seed}-{run.key()[:8]}", f"{run.recipe}-seed{run.seed}-*")
        others = {path for name in names for path in own.parent.glob(name)} - {own}
        yield from map(RunFolder, sorted(others))

    def missing(self, runs: Iterable[Run]) -> list[Run]:
        """Returns the runs without a result, in order, each configuration once."""
        runs_left: dict[str, Run] = {}
        for run in runs:
            if run.key() not in runs_left and self.result(run) is None:
                runs_left[run.key()] = run
        return list(runs_left.values())

    def unfinished(self, runs: Iterable[Run]) -> list[Run]:
        """Returns the runs that have a folder and no result: interrupted, running, or damaged."""
        return [run for run in self.missing(runs) if self.folder(run).root.is_dir()]

    def measured(self, run: Run, what: str, compute: Callable[[], Arrays]) -> Arrays:
        """Returns arrays measured on a run; they are computed once. ``what`` names the measurement and its settings."""
        return self.kept(f"{run.key()}-{what}", compute)

    def kept(self, name: str, compute: Callable[[], Arrays]) -> Arrays:
        """Returns arrays stored under a name; computes them if they do not exist or cannot be read."""
        path = self.root / "measured" / f"{name}.npz"
        arrays = read_arrays(path)
        if arrays is None:
            arrays = compute()
            write_arrays(path, arrays)
        return arrays

    def has(self, run: Run, what: str) -> bool:
        return read_arrays(self.root / "measured" / f"{run.key()}-{what}.npz") is not None

    def write_text(self, name: str, text: str) -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, lambda file: file.write(text.encode()))
        return path


def _is_of(folder: RunFolder, run: Run) -> bool:
    """Returns whether the recipe in a folder is that of ``run``."""
    try:
        return key_of(folder.read_recipe()) == run.key()
    except RunError:
        return False


def write_arrays(path: Path, arrays: Arrays) -> None:
    """Writes an .npz file followed by a checksum of content and name; numpy can read it too."""
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)  # type: ignore[arg-type]
    content = buffer.getvalue()
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, lambda file: file.write(content + _MARK + _digest(content, path.stem)))


def read_arrays(path: Path) -> Arrays | None:
    """Returns the arrays of a file; None if there is none, or if it was damaged or renamed."""
    try:
        content = path.read_bytes()
    except OSError:
        return None
    body, mark, digest = content[:-_END], content[-_END:-32], content[-32:]
    if mark == _MARK:
        if digest not in (_digest(body, path.stem), _digest(body, "")):  # old files do not contain their name
            return None
        content = body
    try:
        with np.load(io.BytesIO(content)) as file:
            return {name: file[name] for name in file.files}
    except Exception:  # a damaged archive fails in many ways: zlib, zip, numpy's header, Python's tokenizer
        return None


def _digest(content: bytes, name: str) -> bytes:
    return hashlib.sha256(content + name.encode()).digest()
