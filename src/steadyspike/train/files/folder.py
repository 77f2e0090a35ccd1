"""The run folder and its files.

recipe.toml          the resolved recipe, with everything it inherited
origin.json          the recipe's name and base, and what differs from the base
run.json             environment, commit, seed, data and split with fingerprints
metrics.csv          one row per epoch        layers.csv   one row per epoch and layer
steps.csv            one row per log_every    health.csv warnings of the health checks, by layer
tensorboard/         the same for TensorBoard
checkpoints/         last.ckpt, last.previous.ckpt, best.ckpt
weights.safetensors the weights that gave the result
result.json          how it ended, and the numbers
details.json         made by `steadyspike report`: confusion matrix, sample predictions, membranes over time steps
energy.json          made by `steadyspike energy`: operations and energy per sample
report.html          the report, if one was made
"""

from __future__ import annotations

import difflib
import filecmp
import json
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from steadyspike.data.cache import build_once, default_dir, writable_dir
from steadyspike.disk.checksum import file_sha256
from steadyspike.disk.lock import lock_file
from steadyspike.disk.plain_text import PlainError
from steadyspike.disk.sealed import BLANK, SealError, check_seal, seal
from steadyspike.train.files.atomic import CheckpointError, write_atomically
from steadyspike.train.files.forms import form_problem
from steadyspike.train.recipe import Recipe, RecipeError, dumps, parse, toml
from steadyspike.train.recipe.identity import difference

NETWORKS = Path(__file__).parents[2] / "zoo" / "networks"  # the folders that contain runs, without checkpoints
_TRIES, _PAUSE = 5, 0.02  # to take a lock that a process in `in_use` may hold for a moment


class RunError(PlainError, RuntimeError):
    """A run folder that cannot be used as requested; the message is one line."""


class DamagedRun(RunError, CheckpointError):
    """A run that cannot be continued, because its files are damaged or missing; a new start is needed."""


@dataclass(frozen=True)
class RunFolder:
    """Paths of one run."""

    root: Path

    @property
    def last(self) -> Path:
        return self.root / "checkpoints" / "last.ckpt"

    @property
    def best(self) -> Path:
        return self.root / "checkpoints" / "best.ckpt"

    @property
    def weights(self) -> Path:
        return self.root / "weights.safetensors"

    def remove_if_unused(self) -> None:
        """Removes a folder in which no run began."""
        if not (self.root / "recipe.toml").exists():
            for name in (".lock", "origin.json"):
                (self.root / name).unlink(missing_ok=True)
            with suppress(OSError):  # the folder is not empty
                self.root.rmdir()
                self.root.parent.rmdir()

    def has_results(self) -> bool:
        """Returns whether a table has rows or weights were written, which a new start would delete."""
        tables = (self.root / f"{name}.csv" for name in ("metrics", "layers", "steps", "health"))
        return self.weights.exists() or any(t.exists() and t.read_bytes().count(b"\n") > 1 for t in tables)

    def read_recipe(self) -> Recipe:
        """Returns the recipe of this run; raises RunError if its file is missing or was changed."""
        path = self.root / "recipe.toml"
        if not path.is_file():
            find_folder(self.root)  # raises a clearer error if there is neither a folder nor a network of this name
            raise RunError(f"{self.root} is not a run folder: it has no recipe.toml")
        with _named(path):
            content = path.read_bytes()
            check_seal(content)
            document = toml.loads(content.decode())
            document.pop("measured", None)  # runs of version 0.1 have it
            return parse(document, str(path))

    def read_json(self, name: str) -> dict[str, Any]:
        """Returns the content of a file of `write_json`; raises RunError if it is missing or was changed."""
        path = self.root / name
        if not path.is_file():
            raise RunError(f"{self.root} has no {name}: did the run end?")
        with _named(path):
            content = path.read_bytes()
            check_seal(content)
            values: dict[str, Any] = json.loads(content)
            values.pop("checksum")
            if (problem := form_problem(name, values)) is not None:
                raise SealError(problem)
            return values

    def write_json(self, name: str, content: dict[str, Any]) -> None:
        """Writes ``content`` with a checksum of the whole file as its last key."""
        text = json.dumps({**content, "checksum": BLANK}, indent=2, ensure_ascii=False) + "\n"
        write_atomically(self.root / name, lambda file: file.write(seal(text.encode())))

    def write_recipe(self, recipe: Recipe) -> None:
        """Writes recipe.toml with a checksum of the whole file as its last line, a comment."""
        text = f"{dumps(recipe.model_dump(exclude_none=True))}\n# {BLANK}\n"
        write_atomically(self.root / "recipe.toml", lambda file: file.write(seal(text.encode())))

    def intact(self, name: str) -> bool:
        """Returns whether a JSON file exists and is unchanged."""
        try:
            self.read_json(name)
        except RunError:
            return False
        return True

    def data_dir(self) -> Path | None:
        """Returns the data folder that is stored in the run, if it still exists."""
        if not self.intact("run.json"):
            return None
        remembered = self.read_json("run.json").get("data_dir")
        return Path(remembered) if remembered is not None and Path(remembered).is_dir() else None

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Holds the folder's lock, so that two runs cannot write here at once."""
        self.root.mkdir(parents=True, exist_ok=True)
        with open(self.root / ".lock", "w") as file:
            for attempt in range(_TRIES):
                try:
                    if lock_file(file):
                        break
                except OSError as error:
                    raise RunError(f"{self.root} cannot be locked on its disk: {error.strerror}") from None
                if attempt == _TRIES - 1:
                    raise RunError(f"{self.root} is being written by another process")
                time.sleep(_PAUSE)
            yield

    def in_use(self) -> bool:
        """Returns whether a process is training in this folder now."""
        try:
            with open(self.root / ".lock") as file:
                return not lock_file(file, shared=True)
        except OSError:  # the file does not exist, or the disk does not support locks
            return False


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Turns every error in reading one of a run's text files into one line that names the file."""
    try:
        yield
    except (SealError, RecipeError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        reason = str(error) if isinstance(error, SealError) else type(error).__name__
        raise RunError(f"{path} is damaged ({reason}); {repair(path)}") from None


def repair(path: Path) -> str:
    """Returns what the user can do about a damaged file: a saved network has no checkpoint to continue from."""
    saved = path.with_name("network.json").exists()
    return "copy or download the folder again" if saved else "--resume writes it again"


def _below_runs(name: str) -> Path:
    """Returns the folder of a recipe's runs.

    Raises RunError if the recipe's file name cannot name a folder (``...toml``).
    """
    if name in ("", ".", "..") or Path(name).name != name:
        raise RunError(f"a recipe file called {name + '.toml'!r} gives no name for a run folder: give one with --out")
    return Path("runs") / name


def new_folder(out: Path | None, name: str) -> RunFolder:
    """Returns ``out``, which must not contain files that a run would overwrite, or the next free ``runs/NAME/001``."""
    if out is not None:
        if out.is_file():
            raise RunError(f"{out} is a file; a run needs a folder, so choose another --out")
        if (out / "recipe.toml").exists():
            raise RunError(f"{out} contains a run already; continue it with --resume or choose another --out")
        if RunFolder(out).has_results():
            raise RunError(f"{out} contains tables or weights that training would overwrite; choose another --out")
        out.mkdir(parents=True, exist_ok=True)
        return RunFolder(out)
    parent = _below_runs(name)
    parent.mkdir(parents=True, exist_ok=True)
    for number in range(1, 10_000):
        try:
            (parent / f"{number:03d}").mkdir()
        except FileExistsError:
            continue
        return RunFolder(parent / f"{number:03d}")
    raise RunError(f"{parent} is full")


def open_folder(out: Path | None, name: str) -> RunFolder:
    """Returns the run to continue: ``out``, or the newest below ``runs/NAME``."""
    if out is not None:
        return RunFolder(out)
    parent = _below_runs(name)
    numbers = [path.parent.name for path in parent.glob("*/recipe.toml") if re.fullmatch("[0-9]+", path.parent.name)]
    if not numbers:
        raise RunError(f"there is no run in {parent} to resume; leave out --resume, or name the folder with --out")
    return RunFolder(parent / max(numbers, key=int))


def resumable(folder: RunFolder, recipe: Recipe) -> None:
    """Raises an error if a run would be continued with another recipe.

    A damaged recipe.toml is ignored: the checkpoint contains its recipe, and the file is written again.
    """
    try:
        then = folder.read_recipe()
    except RunError:
        return
    changed = difference(recipe, then)
    if changed is not None:
        raise RecipeError(f"{folder.root} cannot be resumed with this recipe: {changed}")


def packaged_names() -> list[str]:
    """Returns the names of the packaged networks."""
    return sorted(path.parent.name for path in NETWORKS.glob("*/network.json"))


def find_packaged(name: str | Path) -> Path | None:
    """Returns the folder of the packaged network with this name; None if ``name`` is a path or unknown."""
    text = str(name)
    return NETWORKS / text if text in packaged_names() else None


def find_folder(source: str | Path) -> Path:
    """Returns the folder of a run or a saved network, given as a path or as the name of a packaged network.

    Raises RunError if it is neither. If a path of this name exists, it is used instead of the packaged network.
    """
    path = Path(source)
    try:
        if path.exists() or len(path.parts) != 1:
            return path
    except OSError:  # too long for a file name
        pass
    packaged = find_packaged(source)
    if packaged is None:
        close = difflib.get_close_matches(str(source).lower(), packaged_names(), 1)
        hint = f" (did you mean {close[0]}?)" if close else ""
        raise RunError(f"{str(source)[:200]} is neither a folder nor a network that `steadyspike zoo` lists{hint}")
    return packaged


def run_folder(source: str | Path) -> Path:
    """Does `find_folder` for commands, which write files to a run's folder (folded.safetensors, report.html).

    The folder of a packaged network is therefore a copy in the user's cache.
    """
    folder = find_folder(source)
    return _copy(folder) if folder.parent == NETWORKS else folder


def _copy(packaged: Path) -> Path:
    files = [path for path in sorted(packaged.iterdir()) if path.is_file()]
    stamp = file_sha256(RunFolder(packaged).weights)[:12]
    target = writable_dir(default_dir()) / "zoo" / f"{packaged.name}-{stamp}"

    def complete(folder: Path) -> bool:
        copies = [(file, folder / file.name) for file in files]
        return all(copy.is_file() and filecmp.cmp(file, copy, shallow=False) for file, copy in copies)

    def fill(folder: Path) -> None:
        for file in files:
            shutil.copyfile(file, folder / file.name)

    return build_once(target, complete, fill)
