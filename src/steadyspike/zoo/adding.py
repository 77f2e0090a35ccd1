"""Makes an entry of the zoo from a finished run: rounds the weights, measures them and writes the model card."""

from __future__ import annotations

import itertools
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from steadyspike.data.cache import atomic_folder
from steadyspike.deploy import CannotFold, fold
from steadyspike.deploy.energy import count_operations
from steadyspike.deploy.rewrite import Mode
from steadyspike.disk.checksum import file_sha256
from steadyspike.results.recording import recipe_of_run
from steadyspike.train.build.task import task_for
from steadyspike.train.files.environment import environment
from steadyspike.train.files.folder import RunError, RunFolder
from steadyspike.train.files.weights import load_weights, save_weights
from steadyspike.train.recipe.kinds import kind_of
from steadyspike.train.run.evaluation import evaluate_part
from steadyspike.train.run.loading import LoadedRun, load_run
from steadyspike.train.watch.layers import LayerWatch
from steadyspike.zoo.card import card_of_run
from steadyspike.zoo.description import Numbers, Rounding, describe_run
from steadyspike.zoo.saving import rounded, write_card, write_description, write_record

LARGEST = 4_000_000  # bytes of an entry's weights
ROOM = 50_000  # bytes of the file besides its tensors
ALLOWED = 0.1  # points of accuracy (hundredths of mAP@.5) that rounding may cost
COUNTED, TIMED = 256, 15  # the number of samples whose operations are counted, and of forwards that are timed


def add(source: Path, folder: Path, data_dir: Path | None = None) -> Path:
    """Writes the network of the run ``source`` to ``folder`` (NETWORKS / NAME), with numbers and card.

    The weights are rounded to float16, all or those of the largest layers, if that changes the score by at most
    `ALLOWED` points. The numbers are measured with the stored weights, so that `steadyspike evaluate NAME` gives
    exactly the same numbers.
    """
    run = load_run(source, data_dir)
    if run.result["status"] != "finished":
        raise RunError(f"{source} did not finish ({run.result['status']})")
    if folder.exists():
        raise RunError(f"{folder} exists already: choose another name, or delete it first")
    with atomic_folder(folder) as partial:
        _fill(run, partial, folder.name)
    return folder


def _fill(run: LoadedRun, folder: Path, name: str) -> None:
    before, state = points(run.result["test"]), run.model.state_dict()
    # The first of these that keeps the score. The score must not rise either: this would be chance on the test part.
    choices: list[tuple[Rounding, dict[str, Tensor]]] = [("float16", rounded(state)), ("none", state)]
    if sum(t.nbytes for t in state.values()) > LARGEST - ROOM:
        choices.insert(1, ("float16 in the largest layers", rounded(state, LARGEST - ROOM)))
    for rounding, stored in choices:  # noqa: B007 - the one that was kept is read below
        test, rate = _stored(run, folder, stored)
        if abs(points(test) - before) <= ALLOWED:
            break
    weights = RunFolder(folder).weights
    if weights.stat().st_size > LARGEST:
        raise RunError(f"the weights take {weights.stat().st_size / 1e6:.1f} MB; an entry may have {LARGEST / 1e6:g}")
    sha256 = file_sha256(weights)
    description = describe_run(run, sha256, rounding)
    load_weights(weights, run.model)
    energy, note = _energy(run)
    hardware = f"{environment()['cpu']}, PyTorch {torch.__version__}"
    numbers = Numbers(
        firing_rate=rate, energy_mj=energy, energy_note=note, ms=_milliseconds(run), hardware=hardware, before=before
    )
    write_record(run.folder, folder, sha256, test)
    write_description(folder, description.model_copy(update={"numbers": numbers}))
    write_card(folder, card_of_run(folder, name))


def name_of(source: Path) -> str:
    """Returns the name of an entry: the name of the run's packaged recipe, without ``zoo-``."""
    advice = "an entry has the name of its recipe, so add the recipe's file to src/steadyspike/recipes first"
    return recipe_of_run(RunFolder(source), advice).name.removeprefix("zoo-")


def points(test: dict[str, Any]) -> float:
    """Returns the score of a result in hundredths: accuracy at the last step, or mAP@.5."""
    return float(test["accuracy"][-1]) if "accuracy" in test else 100 * float(test["AP50"])


def _stored(run: LoadedRun, folder: Path, state: dict[str, Tensor]) -> tuple[dict[str, Any], float]:
    """Writes the weights; returns the test scores of the written weights, and spikes per neuron and step."""
    path = RunFolder(folder).weights
    save_weights(path, state, {"split": run.data.split.record()})
    task = task_for(run.recipe, run.data)
    load_weights(path, task.model)
    watch = LayerWatch(task.model, run.recipe.data.timesteps)
    try:
        scores = evaluate_part(task, run.data, "test").record()
    finally:
        watch.close()
    fired, seen = watch.rates[:, :-1].sum(), watch.rates[:, -1].sum() * run.recipe.data.timesteps
    return scores, round(float(fired / seen), 6)


def _energy(run: LoadedRun) -> tuple[float | None, str]:
    """Returns millijoule per test sample of the folded network; None and the reason if it cannot be folded."""
    timed = run.data.timesteps is not None
    batches = (x for x, _ in run.data.eval_loader("test", 64))
    if not (kind := kind_of(run.recipe)).classifies:
        return None, f"networks that find {kind.finds} are not folded"
    first = next(batches)
    modes: tuple[Mode, ...] = ("exact", "graded")
    for mode in modes:
        try:
            network = fold(run.model, first, mode=mode, batch_dim=1 if timed else 0)
        except CannotFold as error:
            reason = str(error)
            continue
        again = (x for x, _ in run.data.eval_loader("test", 64))
        report = count_operations(network, itertools.islice(again, max(1, COUNTED // 64)))
        return round(report.energy(), 6), "" if mode == "exact" else f"folded with mode {mode!r}"
    return None, reason.partition("\n")[0][:200]


@torch.inference_mode()
def _milliseconds(run: LoadedRun) -> float:
    """Returns the median time of one test sample on one thread."""
    batch = next(iter(run.data.eval_loader("test", 1)))[0]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return round(statistics.median(_times(run.model, batch)), 3)
    finally:
        torch.set_num_threads(threads)


def _times(model: nn.Module, x: Tensor) -> list[float]:
    took = []
    for _ in range(TIMED):
        start = time.perf_counter()
        model(x)
        took.append(1000 * (time.perf_counter() - start))
    return took[TIMED // 3 :]
