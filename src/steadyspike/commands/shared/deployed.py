"""Code that the commands for folded networks share: fold a run, load a folded network, prepare its inputs."""

from __future__ import annotations

import copy
import hashlib
import itertools
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from steadyspike.data.errors import DataError
from steadyspike.data.formats.aedat2 import AXES
from steadyspike.data.input_files import are_frame_settings
from steadyspike.deploy import CannotFold, DamagedFile, FoldedNetwork, fold, load, load_extra, save
from steadyspike.deploy.fold import StaysDouble
from steadyspike.deploy.rewrite import Mode
from steadyspike.deploy.schema import MOST_STEPS, Check, each, number, whole
from steadyspike.nn.decision import decided
from steadyspike.train.build.data import load_data
from steadyspike.train.files.folder import RunFolder
from steadyspike.train.recipe.kinds import kind_of
from steadyspike.train.run.loading import LoadedRun, load_run
from steadyspike.zoo.description import facts_of, is_saved, noise

FILE = "folded.safetensors"
BATCH = 64


def input_facts(run: LoadedRun) -> dict[str, Any]:
    """Returns how a file becomes an input of the network, and the names of the classes.

    Both are stored with the folded network.
    """
    return {**facts_of(run), "model": run.recipe.model.name, "weights": _digest(run.folder)}


def _digest(folder: Path) -> str:
    """Returns a hash of the run's weights: if they have changed since the fold, the run is folded again."""
    return hashlib.blake2b(RunFolder(folder).weights.read_bytes(), digest_size=16).hexdigest()


def batches(run: LoadedRun, part: str, samples: int | None, size: int = BATCH) -> Iterator[tuple[Tensor, Tensor]]:
    """Yields batches of ``size`` of a part of the run's data, at most ``samples`` samples of it."""
    left = samples
    for x, y in run.data.eval_loader(part, size):
        if left is not None:
            if left <= 0:
                return
            axis = 1 if run.data.timesteps is not None else 0
            x, y = x.narrow(axis, 0, min(left, len(y))), y[:left]
            left -= len(y)
        yield x, y


def fold_run(run: LoadedRun, mode: Mode) -> FoldedNetwork:
    """Folds the network of a run, proves it on a batch of its test data, and saves it in the run's folder."""
    if not (kind := kind_of(run.recipe)).classifies:
        raise CannotFold(f"{run.folder} finds {kind.finds}, and networks that find {kind.finds} cannot be folded")
    network = fold(run.model, _example(run), mode=mode, batch_dim=_batch_dim(run))
    save(network, run.folder / FILE, {**input_facts(run), "mode": mode})
    return network


def missing_data(run: LoadedRun) -> str | None:
    """Returns why the data set of a saved network is not available; None if it is, and for every other run.

    A saved network can be used without its data set, so nothing is downloaded.
    """
    if not is_saved(run.folder):
        return None
    try:
        load_data(run.recipe.data, run.data_dir, download=False)
    except DataError as error:
        return str(error)
    return None


def _batch_dim(run: LoadedRun) -> int:
    return 1 if facts_of(run)["timesteps"] is not None else 0


def _example(run: LoadedRun) -> Tensor:
    """Returns a batch of the run's test data; for a saved network without its data set, noise of the same shape."""
    if missing_data(run) is not None:
        return noise(run.folder)
    return next(itertools.islice(batches(run, "test", BATCH), 1))[0]


def decisions_in_float64(run: LoadedRun, mode: Mode, samples: int | None) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the decisions of the run's model and of its folded network, both in float64, and the labels."""
    model = copy.deepcopy(run.model).double()
    with StaysDouble():
        network = fold(model, _example(run).double(), mode=mode, batch_dim=_batch_dim(run), check=False)
        expected, labels = decisions(model, ((x.double(), y) for x, y in batches(run, "test", samples)))
        got, _ = decisions(network, ((x.double(), y) for x, y in batches(run, "test", samples)))
    return expected, got, labels


def folded(source: Path, data_dir: Path | None) -> tuple[FoldedNetwork, dict[str, Any]]:
    """The folded network of a run folder (folded now if needed) or of a .safetensors file, and its input facts."""
    if source.is_file():
        return load(source), load_extra(source)
    extra = load_extra(source / FILE) if (source / FILE).exists() else {}
    if not extra or ("weights" in extra and extra["weights"] != _digest(source)):
        fold_run(load_run(source, data_dir), extra.get("mode", "exact"))
    return load(source / FILE), load_extra(source / FILE)


def check_facts(source: Path, facts: dict[str, Any], network: FoldedNetwork) -> None:
    """Raises an error if a file has missing or wrong information about the preparation of inputs and the classes."""
    if "classes" not in facts:
        raise CannotFold(
            f"{source} has no information about classes and inputs; use a run, or the file that `steadyspike fold` "
            "wrote into it"
        )
    wrong = _wrong_fact(facts, network)
    if wrong is not None:
        raise DamagedFile(f"{source.name} is damaged: {wrong}")


def _wrong_fact(facts: dict[str, Any], network: FoldedNetwork) -> str | None:
    """Returns what is wrong with the facts of a folded file; None if they match the network."""
    rows = each(number(-1e6, 1e6), 1, 64)
    rules: dict[str, Check] = {
        "classes": each(lambda v: isinstance(v, str), 1, 2**20),
        "size": each(whole(1, 2**14), 2, 2),
        "channels": whole(1, 64),
        "timesteps": lambda v: v is None or whole(1, MOST_STEPS)(v),
        "mean": lambda v: v is None or rows(v),
        "std": lambda v: v is None or (rows(v) and all(n > 0 for n in v)),
        "frames": lambda v: v is None or are_frame_settings(v),
        "axes": lambda v: isinstance(v, str) and v in AXES,
    }
    for key, check in rules.items():
        if key not in facts and key != "axes":
            return f"it has no {key!r}"
        if key in facts and not check(facts[key]):
            return f"its {key!r} cannot be {ascii(facts[key])[:60]}"
    channels = facts["channels"]
    lengths = {None if facts[key] is None else len(facts[key]) for key in ("mean", "std")}
    if lengths not in ({None}, {channels}):
        return f"mean and std are not those of {channels} channels"
    node, out = network.graph.input, network.graph[network.graph.output].shape
    if node.shape != (channels, *facts["size"]) or node.timed != (facts["timesteps"] is not None):
        return "its facts describe another input than the one its network takes"
    if out != (len(facts["classes"]),):
        return f"it names {len(facts['classes'])} classes, but its network returns {list(out)} numbers"
    return "it does not describe how events become frames" if node.timed and facts["frames"] is None else None


@torch.no_grad()
def decisions(model: Callable[[Tensor], Tensor], data: Iterable[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Returns the class that the mean output over time chooses for every sample, and the labels."""
    chosen, labels = [], []
    for x, y in data:
        out = model(x)
        chosen.append(decided(out.mean(0) if out.ndim == 3 else out))
        labels.append(y)
    return torch.cat(chosen), torch.cat(labels)


def correct(model: Callable[[Tensor], Tensor], data: Iterable[tuple[Tensor, Tensor]]) -> tuple[int, int]:
    """Returns how many samples the mean output over time classifies correctly, and the number of all samples."""
    chosen, labels = decisions(model, data)
    return int((chosen == labels).sum()), len(labels)
