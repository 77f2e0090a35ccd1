"""`save_pretrained`: saves a trained network as a folder of weights, description and card, without any code."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from steadyspike.disk.checksum import file_sha256
from steadyspike.nn.neurons import NEURONS, NeuronSpec
from steadyspike.train.files.atomic import write_atomically
from steadyspike.train.files.folder import RunError, RunFolder
from steadyspike.train.files.weights import NOTED, save_weights
from steadyspike.train.run.loading import LoadedRun
from steadyspike.zoo.card import card_of_model, card_of_run
from steadyspike.zoo.description import CARD, FILE, Description, Input, Rounding, build, describe_run
from steadyspike.zoo.pretrained import Pretrained

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
    classes, mean, std: names of the classes and how images are normalised, if ``model`` is a network alone
    half: round the weights of convolutions and linear layers to float16, which halves the file
    about: a sentence for the card

    Before this returns, the network is built again from the written files and compared.
    """
    target = Path(folder)
    if target.exists() and any(target.iterdir()):
        raise RunError(f"{target} is not empty: save_pretrained writes into a new folder")
    target.mkdir(parents=True, exist_ok=True)
    rounding: Rounding = "float16" if half else "none"
    network = model if isinstance(model, nn.Module) else model.model
    state = rounded(network.state_dict()) if half else network.state_dict()
    save_weights(RunFolder(target).weights, state, {})
    sha256 = file_sha256(RunFolder(target).weights)
    if isinstance(model, LoadedRun):
        description = describe_run(model, sha256, rounding)
        write_record(model.folder, target, sha256)
    elif isinstance(model, Pretrained):
        changed = {"weights_sha256": sha256, "rounding": rounding, "numbers": None, "classes": list(model.classes)}
        description = model.description.model_copy(update=changed)
    else:
        description = describe_model(model, sha256, classes, mean, std).model_copy(update={"rounding": rounding})
    write_description(target, description)
    if isinstance(model, LoadedRun):
        write_card(target, card_of_run(target, target.name, about))
    else:
        write_card(target, card_of_model(description, target.name, about))
    _prove(network, description, state)
    return target


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
    norm = {"threshold": options.pop("norm_threshold", None), "alpha": options.pop("residual_alpha", None)}
    recipe = {
        "model": {"name": made["name"], "width": made["width"], "options": options},
        "neuron": _neuron_table(made["neuron"]),
        "norm": {"name": made["norm"], **{key: value for key, value in norm.items() if value is not None}},
        "data": {"timesteps": made["timesteps"]},
        "train": {"channels_last": _channels_last(model)},
    }
    image = {"size": list(made["image_size"]), "channels": made["in_channels"]}
    return Description(
        recipe=recipe,
        num_classes=made["num_classes"],
        classes=[str(name) for name in classes],
        input=Input(**image, mean=_floats(mean), std=_floats(std)),
        weights_sha256=sha256,
    )


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
def _prove(model: nn.Module, description: Description, state: dict[str, Tensor]) -> None:
    """Builds the network again and compares its outputs with those of the given one; raises RunError if they differ."""
    again, given = build(description, state).eval(), copy.deepcopy(model).eval()
    given.load_state_dict(state)
    size = (2, description.input.channels, *description.input.size)
    steps = description.input.timesteps
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        x = 3 * torch.randn(size if steps is None else (steps, *size))  # strong inputs, so that a new network fires
    here, there = given(x), again(x)
    pairs = zip(here, there) if isinstance(here, (list, tuple)) else [(here, there)]
    if not all(torch.equal(a, b) for a, b in pairs):
        raise RunError("the network differs from one that its description builds: was a layer of it replaced?")
