"""`save_pretrained`: saves a trained network as a folder of weights, description and card, without any code."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from torch import Tensor, nn

from steadyspike.disk.checksum import file_sha256
from steadyspike.nn.neurons import NEURONS, NeuronSpec
from steadyspike.train.files.atomic import write_atomically
from steadyspike.train.files.folder import RunError, RunFolder
from steadyspike.train.files.weights import NOTED, save_weights
from steadyspike.train.run.loading import LoadedRun
from steadyspike.zoo.card import card_of_model, card_of_run
from steadyspike.zoo.description import CARD, FILE, Description, Input, Rounding, describe_run, first_problem
from steadyspike.zoo.pretrained import Pretrained, load

HALF_LARGEST = 65504.0


def save_pretrained(
    model: nn.Module | LoadedRun | Pretrained,
    folder: str | Path,
    *,
    classes: Sequence[str] = (),
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    half: bool = False,
    about: str = "",
) -> Path:
    """Writes a network so that `load` can build it again: weights.safetensors, network.json and README.md, its card.

    model: a run (``ss.load_run``), a network of `ss.load`, or a network that `steadyspike.models.create` made
    classes, mean, std: names of the classes and how images are normalised; a run and a network of `load` have them
    half: round the weights of convolutions and linear layers to float16, which halves the file
    about: a sentence for the card

    Weights of other types (float64, bfloat16) are saved as float32. Before this returns, the network is loaded from the
    written files and compared. After an error the folder is as it was.
    """
    target = Path(folder)
    if isinstance(model, LoadedRun) and (len(classes) or mean is not None or std is not None):
        raise RunError("classes, mean and std of a run are those of its data set: leave them out")
    rounding: Rounding = "float16" if half else "none"
    network = copy.deepcopy(_module(model)).to("cpu", torch.float32).eval()
    state = rounded(network.state_dict()) if half else network.state_dict()
    with _filled(target):
        save_weights(RunFolder(target).weights, state, {})
        sha256 = file_sha256(RunFolder(target).weights)
        if isinstance(model, LoadedRun):
            description = describe_run(model, sha256, rounding)
            write_record(model.folder, target, sha256)
        elif isinstance(model, Pretrained):
            description = _describe_again(model, sha256, classes, mean, std)
        else:
            description = describe_model(network, sha256, classes, mean, std)
        description = description.model_copy(update={"rounding": rounding})
        write_description(target, description)
        if isinstance(model, LoadedRun):
            write_card(target, card_of_run(target, target.name, about))
        else:
            write_card(target, card_of_model(description, target.name, about))
        network.load_state_dict(state)
        _compare(network, target)
    return target


def _module(model: nn.Module | LoadedRun | Pretrained) -> nn.Module:
    network = model.model if isinstance(model, (LoadedRun, Pretrained)) else model
    if not isinstance(network, nn.Module):
        raise TypeError(f"save_pretrained takes a network, a run or a network of ss.load, got {type(model).__name__}")
    compiled: nn.Module = getattr(network, "_orig_mod", network)  # torch.compile wraps the network
    return compiled


@contextmanager
def _filled(target: Path) -> Iterator[None]:
    """Makes an empty folder, and empties it again if the block ends with an error."""
    if target.exists() and not target.is_dir():
        raise RunError(f"{target} is a file: save_pretrained writes into a new folder")
    if target.exists() and any(target.iterdir()):
        raise RunError(f"{target} is not empty: save_pretrained writes into a new folder")
    existed = target.exists()
    target.mkdir(parents=True, exist_ok=True)
    try:
        yield
    except BaseException:
        for path in target.iterdir():
            path.unlink()
        if not existed:
            target.rmdir()
        raise


def rounded(state: dict[str, Tensor], until: int = 0) -> dict[str, Tensor]:
    """Returns ``state`` with the weights of convolutions and linear layers in float16.

    until: stop when all tensors together have this number of bytes; the largest ones are rounded first

    Constants and statistics stay exact.
    """

    def fits(t: Tensor) -> bool:
        return t.is_floating_point() and t.ndim >= 2 and float(t.abs().max()) < HALF_LARGEST

    small, left = dict(state), sum(t.nbytes for t in state.values()) - until
    for name, t in sorted(state.items(), key=lambda item: -item[1].numel()):
        if left > 0 and t.numel() and fits(t):
            small[name] = t.half()
            left -= t.nbytes - small[name].nbytes
    return small


def write_description(folder: Path, description: Description) -> None:
    """Writes network.json."""
    RunFolder(folder).write_json(FILE, description.model_dump())


def write_card(folder: Path, text: str) -> None:
    """Writes README.md."""
    write_atomically(folder / CARD, lambda file: file.write(text.encode()))


def write_record(source: Path, target: Path, sha256: str, test: dict[str, Any] | None = None) -> None:
    """Copies the run's own files, so that commands accept the folder as a run. Paths of the machine are removed.

    test: scores of the weights in ``target``, if rounding changed them
    """
    # all tables, because a kind of run may add some
    for path in (source / "recipe.toml", *sorted(source.glob("*.csv"))):
        if path.is_file():
            shutil.copyfile(path, target / path.name)
    run = RunFolder(source)
    about, result = run.read_json("run.json"), run.read_json("result.json")
    about["environment"].pop("command", None)
    about.pop("data_dir", None)
    result[NOTED] = sha256
    if test is not None:
        result["test"] = test
    copied = RunFolder(target)
    copied.write_json("run.json", about)
    copied.write_json("result.json", result)


def describe_model(
    model: nn.Module, sha256: str, classes: Sequence[str], mean: Sequence[float] | None, std: Sequence[float] | None
) -> Description:
    """Describes a network of `steadyspike.models.create`; raises RunError if it cannot be described without code."""
    made: dict[str, Any] | None = getattr(model, "made_of", None)
    if made is None:
        raise RunError(
            f"{type(model).__name__} needs its code: it was not made by steadyspike.models.create, or its neuron, norm "
            "or block is code; fold it and save it with steadyspike.deploy.save, which needs none"
        )
    options = {key: list(value) if isinstance(value, tuple) else value for key, value in made["options"].items()}
    names = _names(classes)
    norm = {"threshold": options.pop("norm_threshold", None), "alpha": options.pop("residual_alpha", None)}
    recipe = {
        "model": {"name": made["name"], "width": made["width"], "options": options},
        "neuron": _neuron_table(made["neuron"]),
        "norm": {"name": made["norm"], **{key: value for key, value in norm.items() if value is not None}},
        "data": {"timesteps": getattr(model, "timesteps", made["timesteps"])},  # may have been changed since
        "train": {"channels_last": _channels_last(model)},
    }
    image = {"size": list(made["image_size"]), "channels": made["in_channels"]}
    try:
        return Description(
            recipe=recipe,
            num_classes=made["num_classes"],
            classes=names,
            input=Input(**image, mean=_floats(mean), std=_floats(std)),
            weights_sha256=sha256,
        )
    except ValidationError as error:
        raise RunError(f"the network cannot be described: {first_problem(error)}") from None


def _describe_again(
    net: Pretrained, sha256: str, classes: Sequence[str], mean: Sequence[float] | None, std: Sequence[float] | None
) -> Description:
    """Returns the description of a network of `load` with its weights of now; what was measured is left out."""
    tables = net.description.model_dump()
    tables.update(weights_sha256=sha256, numbers=None, num_classes=net.num_classes)
    tables["classes"] = _names(classes) or list(net.classes)
    tables["recipe"].setdefault("data", {})["timesteps"] = getattr(net.model, "timesteps", net.timesteps)
    if net.num_classes != net.description.num_classes:  # it was trained on other data since
        tables["recipe"]["data"] = {"timesteps": tables["recipe"]["data"]["timesteps"]}
        tables["input"]["data"] = ""
    for key, values in (("mean", mean), ("std", std)):
        if values is not None:
            tables["input"][key] = _floats(values)
    try:
        return Description.model_validate(tables)
    except ValidationError as error:
        raise RunError(f"the network cannot be described: {first_problem(error)}") from None


def _names(classes: Sequence[str]) -> list[str]:
    if isinstance(classes, str):
        raise TypeError(f"classes is the text {classes[:40]!r}; it must be a list of names")
    return [str(name) for name in classes]


def _floats(values: Sequence[float] | None) -> list[float] | None:
    return None if values is None else [float(value) for value in values]


def _channels_last(model: nn.Module) -> bool:
    last = torch.channels_last
    weights = [p for p in model.parameters() if p.ndim == 4 and p.shape[1] > 1 and p.shape[2] > 1]
    return bool(weights) and all(p.is_contiguous(memory_format=last) for p in weights)


def _neuron_table(neuron: Any) -> dict[str, Any]:
    """[neuron] from the arguments of ``create``: a name, a class of the catalogue, or one with plain options."""
    if isinstance(neuron, NeuronSpec):
        options = {key: list(value) if isinstance(value, tuple) else value for key, value in neuron.options.items()}
        if all(isinstance(value, (str, int, float, bool, list)) for value in options.values()):
            named = ("threshold", "tau", "gradient", "init", "learn")
            table = {"name": neuron.name, "channelwise": neuron.channelwise}
            return {**table, **{key: options.pop(key) for key in (*options,) if key in named}, "options": options}
    names = [name for name, info in NEURONS.items() if neuron == name or (info.build is neuron and not info.options)]
    if not names:
        raise RunError(
            f"its neuron {neuron!r} cannot be described without code: fold the network, or train it by a recipe"
        )
    return {"name": names[0]}


@torch.no_grad()
def _compare(model: nn.Module, folder: Path) -> None:
    """Loads the written network and compares its outputs with those of ``model``; raises RunError if they differ."""
    net = load(folder)
    given = net.description.input
    size = (2, given.channels, *given.size)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        # strong inputs, so that a new network fires
        x = 3 * torch.randn(size if given.timesteps is None else (given.timesteps, *size))
    here, there = model(x), net.model(x)
    pairs = zip(here, there) if isinstance(here, (list, tuple)) else [(here, there)]
    if not all(torch.equal(a, b) for a, b in pairs):
        raise RunError("the network differs from one that its description builds: was a layer of it replaced?")
