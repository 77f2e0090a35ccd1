"""The run folder: what a run leaves behind, where.

recipe.toml          the resolved recipe, with everything it inherited
run.json             environment, commit, seed, data and split with fingerprints
metrics.csv          one row per epoch        layers.csv   one row per epoch and layer
steps.csv            one row per log_every    health.csv   what went wrong, where
tensorboard/         the same for TensorBoard
checkpoints/         last.ckpt, last.previous.ckpt, best.ckpt
weights.safetensors  the weights the result is of
result.json          how it ended, and the numbers
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from steadyspike.train.files.atomic import write_atomically
from steadyspike.train.files.same_recipe import difference
from steadyspike.train.recipe import Recipe, RecipeError, dumps, parse, toml


class RunError(RuntimeError):
    """A run folder that cannot be used as asked; the message is one line."""


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
        """Takes away a folder in which no run began."""
        if not (self.root / "recipe.toml").exists():
            (self.root / ".lock").unlink(missing_ok=True)
            with suppress(OSError):  # something is in it after all
                self.root.rmdir()
                self.root.parent.rmdir()

    def has_results(self) -> bool:
        """Whether a table has rows, or weights were written: something that a start from the beginning would delete."""
        tables = (self.root / f"{name}.csv" for name in ("metrics", "layers", "steps", "health"))
        return self.weights.exists() or any(t.exists() and t.read_bytes().count(b"\n") > 1 for t in tables)

    def read_recipe(self) -> Recipe:
        path = self.root / "recipe.toml"
        if not path.is_file():
            raise RunError(f"{self.root} is not a run folder: it has no recipe.toml")
        return parse(toml.loads(path.read_text(encoding="utf-8")), str(path))

    def read_json(self, name: str) -> dict[str, Any]:
        path = self.root / name
        if not path.is_file():
            raise RunError(f"{self.root} has no {name}: did the run end?")
        try:
            found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        except ValueError:
            raise RunError(f"{path} is damaged; remove it, and --resume writes it again") from None
        return found

    def write_json(self, name: str, content: dict[str, Any]) -> None:
        text = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
        write_atomically(self.root / name, lambda file: file.write(text.encode()))

    def write_recipe(self, recipe: Recipe) -> None:
        text = dumps(recipe.model_dump(exclude_none=True))
        write_atomically(self.root / "recipe.toml", lambda file: file.write(text.encode()))

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Held while a run writes here, so that two cannot."""
        import fcntl

        self.root.mkdir(parents=True, exist_ok=True)
        with open(self.root / ".lock", "w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise RunError(f"{self.root} is being written by another process") from None
            yield


def new_folder(out: Path | None, name: str) -> RunFolder:
    """``out``, which must be empty or not exist, or the next free ``runs/NAME/001``."""
    if out is not None:
        if (out / "recipe.toml").exists():
            raise RunError(f"{out} holds a run already; continue it with --resume or choose another --out")
        out.mkdir(parents=True, exist_ok=True)
        return RunFolder(out)
    parent = Path("runs") / name
    parent.mkdir(parents=True, exist_ok=True)
    for number in range(1, 10_000):
        try:
            (parent / f"{number:03d}").mkdir()
        except FileExistsError:
            continue
        return RunFolder(parent / f"{number:03d}")
    raise RunError(f"{parent} is full")


def open_folder(out: Path | None, name: str) -> RunFolder:
    """The run to continue: ``out``, or the newest below ``runs/NAME``."""
    if out is not None:
        return RunFolder(out)
    found = sorted(Path("runs", name).glob("[0-9]*/recipe.toml"))
    if not found:
        raise RunError(f"there is no run in runs/{name} to resume; leave out --resume, or name the folder with --out")
    return RunFolder(found[-1].parent)


def resumable(folder: RunFolder, recipe: Recipe) -> None:
    """Refuses to continue a run with another recipe."""
    changed = difference(recipe, folder.read_recipe())
    if changed is not None:
        raise RecipeError(f"{folder.root} cannot be resumed with this recipe: {changed}")
