"""weights.safetensors: the weights of a run's result, with their recipe and a checksum of the whole file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from steadyspike.data.splits import Split
from steadyspike.disk.checksum import file_sha256
from steadyspike.disk.sealed import BLANK, SealError, check_seal, seal
from steadyspike.train.files.atomic import write_atomically
from steadyspike.train.files.folder import RunError, RunFolder, repair, run_folder
from steadyspike.train.files.tables import Extent, extent_problem
from steadyspike.train.recipe import Recipe, RecipeError

NOTED, NOTED_RECIPE = "weights_sha256", "recipe_sha256"  # keys of result.json


def save_weights(path: Path, state: dict[str, Tensor], about: dict[str, Any]) -> None:
    """Writes a model's state as safetensors, with ``about`` as JSON under the metadata key "steadyspike".

    There is only one metadata key, because the format does not fix the order of several, and equal weights must give
    equal files. Tied parameters are stored once for each name.
    """
    from safetensors.torch import save

    tensors = {name: value.detach().cpu().contiguous().clone() for name, value in state.items()}
    content = seal(save(tensors, {"steadyspike": json.dumps({**about, "checksum": BLANK}, sort_keys=True)}))
    write_atomically(path, lambda file: file.write(content))


def read_weights(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Returns the state and what was saved about it; raises RunError if the file was changed."""
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        content = path.read_bytes()
        check_seal(content)
        header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
        about = json.loads(header["__metadata__"]["steadyspike"])
        about.pop("checksum")
        return load(content), about
    except (FileNotFoundError, NotADirectoryError):
        raise RunError(f"{path} does not exist: did the run end?") from None
    except (SealError, SafetensorError, ValueError, KeyError, TypeError, AttributeError, RuntimeError) as error:
        reason = str(error) if isinstance(error, SealError) else f"{type(error).__name__} while reading it"
        raise RunError(f"{path} is damaged ({reason}); {repair(path)}") from None


def load_weights(path: Path, model: nn.Module) -> dict[str, Any]:
    """Loads weights of `save_weights` into ``model``; every name and shape must match.

    Returns what was saved about them.
    """
    state, about = read_weights(path)
    expected = model.state_dict()
    for name in expected.keys() | state.keys():
        here, there = expected.get(name), state.get(name)
        if here is None or there is None:
            where = "has no" if there is None else "has a tensor that the network does not have:"
            raise RunError(f"{path} {where} {name!r}: it belongs to another network")
        if here.shape != there.shape:
            raise RunError(
                f"{path} belongs to another network: {name!r} is {tuple(there.shape)}, here it is {tuple(here.shape)}"
            )
    model.load_state_dict(state)
    return about


def load_own_weights(folder: RunFolder, model: nn.Module) -> dict[str, Any]:
    """Does `load_weights` for a run that has ended; raises RunError if they do not match result.json."""
    about = load_weights(folder.weights, model)
    check_own(folder, folder.read_json("result.json"))
    return about


def check_own(folder: RunFolder, result: dict[str, Any]) -> None:
    """Raises RunError if recipe.toml or weights.safetensors does not match ``result``.

    A file that was copied from another run has a correct checksum, so this is checked too. Runs without a recorded
    checksum are accepted.
    """
    recipe = folder.root / "recipe.toml"
    if result.get(NOTED_RECIPE) is not None and not (recipe.is_file() and file_sha256(recipe) == result[NOTED_RECIPE]):
        raise RunError(
            f"{recipe} does not match result.json; one of the two was copied from another run; --resume with the "
            "run's recipe writes both"
        )
    if result.get(NOTED) not in (None, file_sha256(folder.weights)):
        raise RunError(
            f"{folder.weights} does not match result.json; it was copied from another run; --resume writes it again"
        )


def intact_result(folder: RunFolder) -> dict[str, Any] | None:
    """Returns result.json of a run that has ended, if nothing is left to do.

    Returns None for a run that was interrupted, and if run.json, result.json, the weights or a table are missing,
    damaged or from another run. Continuing the run then writes them again, or reports what is lost.
    """
    try:
        folder.read_json("run.json")
        result = folder.read_json("result.json")
        if result["status"] != "interrupted":
            read_weights(folder.weights)
            check_own(folder, result)
            if all(_same_table(folder.root / f"{name}.csv", extent) for name, extent in result["tables"].items()):
                return result
    except RunError:
        pass
    return None


def _same_table(path: Path, extent: Extent) -> bool:
    """Returns whether a CSV of a run that has ended is unchanged, with nothing after the run's content."""
    return extent_problem(path, extent) is None and path.stat().st_size == extent["length"]


def start_from(model: nn.Module, source: str) -> str:
    """Copies the weights of a run or a network of the zoo into ``model``; returns a sentence about what was copied.

    Tensors of the same name and shape are copied, including statistics of norms and MP-Init. All others, such as a last
    layer for other classes, keep their random start. Raises RecipeError if no tensor matches.
    """
    if source.startswith("hf://"):
        raise RecipeError(
            f"train.start = {source!r} is on a hub: ss.save_pretrained(ss.load({source!r}), FOLDER), then give FOLDER"
        )
    try:
        state, _ = read_weights(RunFolder(run_folder(source)).weights)
    except RunError as error:
        raise RecipeError(f"train.start = {source!r}: {error}") from None
    own = model.state_dict()
    fits = {name: t for name, t in state.items() if name in own and own[name].shape == t.shape}
    if not any(own[name].ndim > 1 for name in fits):
        raise RecipeError(f"train.start = {source!r} is another network: none of its layers matches this one")
    with torch.no_grad():
        model.load_state_dict({**own, **fits})
    new = [name for name in own if name not in fits]
    added = f"; new: {', '.join(new[:4])}" if new else ""
    return f"starts with {len(fits)} of {len(own)} tensors of {source}{added}"


def split_warning(source: str, split: Split) -> str | None:
    """Returns a sentence if the weights of ``source`` may have been trained on samples of the test part of ``split``.

    None if its run had another data set or the same test part, and if its split was not recorded.
    """
    folder = RunFolder(run_folder(source))
    if not folder.intact("run.json"):
        return None
    record = folder.read_json("run.json")["data"]["split"]
    test = record.get("parts", {}).get("test", {}).get("fingerprint")
    if record.get("dataset") != split.dataset or test in (None, split.part_fingerprints["test"]):
        return None
    return (
        f"{source} was trained on another split of {split.dataset} ({record['name']}), perhaps on samples of this "
        "run's test part: the test accuracy would then be too high"
    )


def start_record(recipe: Recipe) -> dict[str, Any]:
    """Returns the entry of run.json about the weights that a run started with."""
    if not recipe.train.start:
        return {}
    return {"start_sha256": file_sha256(RunFolder(run_folder(recipe.train.start)).weights)}
