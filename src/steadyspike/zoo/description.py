"""network.json: what a trained network is, as data. `load` needs only this file and weights.safetensors.

A description contains no code and names none: the network is one of `steadyspike.models`, with neurons and norms of the
catalogues, and every key is checked. Files may come from strangers, so the memory and time that they can cost is
limited, too.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from torch import Tensor, nn

from steadyspike.data.formats.aedat2 import AXES
from steadyspike.data.input_files import are_frame_settings, input_facts
from steadyspike.train.build.build_network import build_model
from steadyspike.train.build.own_code import is_own
from steadyspike.train.files.folder import RunError, RunFolder
from steadyspike.train.recipe import PRIVATE, Recipe, RecipeError
from steadyspike.train.recipe.load import parse
from steadyspike.train.run.loading import LoadedRun

FILE, CARD = "network.json", "README.md"
FORMAT: Literal["steadyspike network 1"] = "steadyspike network 1"
LARGEST_TEXT = 1 << 20  # bytes of network.json
LARGEST_WEIGHTS = 1 << 32  # bytes of weights.safetensors
MOST_STEPS = 10_000
_REPEATS = ("layers", "depth", "blocks")  # options of networks that set how often a block is repeated
_REAL = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_Number = Annotated[float, Field(allow_inf_nan=False)]


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Input(_Table):
    """How a file becomes an input, as `steadyspike.data.input_files.read_input` takes it."""

    size: list[Annotated[int, Field(ge=1, le=1 << 14)]] = Field(min_length=2, max_length=2)
    channels: int = Field(ge=1, le=4096)
    timesteps: int | None = Field(default=None, ge=1, le=MOST_STEPS)
    mean: list[_Number] | None = None
    std: list[Annotated[_Number, Field(gt=0)]] | None = None
    frames: dict[str, Any] | None = None
    axes: str = "dvs-cifar10"
    data: str = Field(default="", max_length=200)

    @model_validator(mode="after")
    def _consistent(self) -> Input:
        if {None if part is None else len(part) for part in (self.mean, self.std)} not in ({None}, {self.channels}):
            raise ValueError(f"mean and std must both have {self.channels} numbers, one per channel, or be left out")
        if self.axes not in AXES:
            raise ValueError(f"axes must be one of {', '.join(AXES)}")
        if self.frames is not None and not are_frame_settings(self.frames):
            raise ValueError("frames are not settings of a clip")
        return self


class Numbers(_Table):
    """Measurements on the test part with the stored weights.

    firing_rate: spikes per neuron and step
    energy_mj: per sample at 45 nm fp32, of the folded network; None with a reason in ``energy_note``
    ms: of one sample on one thread of ``hardware``
    before: the score before rounding
    """

    firing_rate: float
    energy_mj: float | None
    energy_note: str = ""
    ms: float
    hardware: str
    before: float


Rounding = Literal["float16", "float16 in the largest layers", "none"]


class Description(_Table):
    """recipe: the tables that build the network, and the rest of the recipe if it was trained by one

    rounding: of the weights of convolutions and linear layers in the file: all, those of the largest layers, or none
    """

    format: Literal["steadyspike network 1"] = FORMAT
    recipe: dict[str, Any]
    num_classes: int = Field(ge=1, le=1_000_000)
    classes: list[str] = Field(max_length=100_000)
    input: Input
    weights_sha256: str = Field(pattern="^[0-9a-f]{64}$")
    rounding: Rounding = "none"
    numbers: Numbers | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Description:
        if len(self.classes) not in (0, self.num_classes):
            raise ValueError(f"{len(self.classes)} names of classes for {self.num_classes} classes")
        return self

    @property
    def facts(self) -> dict[str, Any]:
        """Returns the settings in the form that `read_input` takes."""
        return {**self.input.model_dump(), "classes": self.classes}


def read_description(folder: Path) -> Description:
    """Reads the description in a folder.

    Raises RunError, in one line, if it is missing, damaged, too large or malformed.
    """
    path = folder / FILE
    if not path.is_file():
        raise RunError(f"{folder} has no {FILE}: it is not a folder that save_pretrained wrote")
    if path.stat().st_size > LARGEST_TEXT:
        raise RunError(f"{path} is larger than a description can be ({LARGEST_TEXT} bytes)")
    try:
        return Description.model_validate(RunFolder(folder).read_json(FILE))
    except ValidationError as error:
        raise RunError(f"{path} is not a description of a network: {first_problem(error)}") from None


def first_problem(error: ValidationError) -> str:
    """Returns the first problem in a description: its key and what is wrong, in one line."""
    first = error.errors()[0]
    key = ".".join(str(part) for part in first["loc"])[:100]
    return f"{key}: {first['msg'].removeprefix('Value error, ')[:200]}".removeprefix(": ")


def recipe_of(description: Description) -> Recipe:
    """Returns the recipe of a description; raises RunError if it names code or is not a recipe."""
    try:
        recipe = parse(description.recipe, FILE)
    except (RecipeError, RecursionError) as error:
        raise RunError(str(error)) from None
    for key, name in (("model.name", recipe.model.name), ("data.name", recipe.data.name)):
        if is_own(name):
            raise RunError(f"{key} = {name[:100]!r} is code, which a saved network cannot name")
    if recipe.data.timesteps > MOST_STEPS:
        raise RunError(f"data.timesteps = {recipe.data.timesteps} is more than {MOST_STEPS}")
    return recipe


def build(description: Description, state: dict[str, Tensor], num_classes: int | None = None) -> nn.Module:
    """Builds the network of a description with the weights ``state``; raises RunError if they do not match.

    The network is first built without memory and compared with the weights, so that a small file cannot allocate a
    large network.

    num_classes: another number of classes; tensors that then have another shape are initialised again
    """
    recipe = recipe_of(description)
    for key in _REPEATS:
        given = recipe.model.options.get(key, 0)
        if sum(given if isinstance(given, list) else [given]) > len(state):
            raise RunError(f"model.options.{key} = {str(given)[:60]} are more blocks than the file has weights of")
    shape = {"in_channels": description.input.channels, "image_size": tuple(description.input.size)}
    try:
        with torch.device("meta"):
            empty = build_model(recipe, num_classes=description.num_classes, **shape)  # type: ignore[arg-type]
        _compare(empty.state_dict(), state)
        classes = description.num_classes if num_classes is None else num_classes
        model = build_model(recipe, num_classes=classes, **shape)  # type: ignore[arg-type]
    except (RecipeError, RuntimeError, ValueError, TypeError, OverflowError, ArithmeticError) as error:
        if isinstance(error, RunError):
            raise
        reason = (str(error).splitlines() or [type(error).__name__])[0][:300]
        raise RunError(f"the network cannot be built: {reason}") from None
    own = model.state_dict()
    model.load_state_dict({name: own[name] if own[name].shape != t.shape else t for name, t in state.items()})
    for name, t in model.state_dict().items():
        if t.is_floating_point() and not t.isfinite().all():
            raise RunError(f"the weights contain a value that is not finite: in {name!r}")
    if recipe.train.channels_last:
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return model


def _compare(expected: dict[str, Tensor], state: dict[str, Tensor]) -> None:
    for name in expected.keys() | state.keys():
        here, there = expected.get(name), state.get(name)
        if here is None or there is None or here.shape != there.shape:
            shapes = " and ".join("missing" if t is None else str(list(t.shape)) for t in (here, there))
            raise RunError(f"the weights do not belong to the described network: {name[:100]!r} is {shapes}")
        if there.dtype not in (_REAL if here.is_floating_point() else (here.dtype,)):
            raise RunError(f"the weights do not belong to the described network: {name[:100]!r} is of {there.dtype}")


def describe_run(run: LoadedRun, sha256: str, rounding: Rounding = "none") -> Description:
    """Returns the description of a finished run; its data set is opened for the names of the classes."""
    recipe, facts = run.recipe, facts_of(run)
    if is_own(recipe.model.name):
        raise RunError(f"model.name = {recipe.model.name!r} is your own code: fold the network to save it without code")
    # defaults are stored too, because they may change
    tables = recipe.model_dump(exclude_none=True, exclude=set(PRIVATE))
    if is_own(recipe.data.name):
        tables["data"] = {"timesteps": recipe.data.timesteps}
    about = RunFolder(run.folder).read_json("run.json")
    return Description(
        recipe=tables,
        num_classes=about["data"]["classes"],
        classes=facts.pop("classes"),
        input=Input(**facts),
        weights_sha256=sha256,
        rounding=rounding,
    )


def facts_of(run: LoadedRun) -> dict[str, Any]:
    """Returns how a file becomes an input of a run's network, from its description or otherwise from its data set."""
    if is_saved(run.folder):
        return read_description(run.folder).facts
    return input_facts(run.data.dataset)


def is_saved(folder: Path) -> bool:
    """Returns whether a folder is a network of the zoo or of `save_pretrained`."""
    return (folder / FILE).is_file()


def noise(folder: Path, samples: int = 8) -> Tensor:
    """Returns a batch of noise of the shape that a saved network takes; it is the same at every call."""
    given = read_description(folder).input
    shape = (samples, given.channels, *given.size)
    generator = torch.Generator().manual_seed(0)
    if given.timesteps is None:
        return torch.randn(shape, generator=generator)
    return torch.poisson(torch.full((given.timesteps, *shape), 0.2), generator=generator)
