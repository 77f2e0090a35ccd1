"""The user's own network or data set, named in a recipe as ``"package.module:Name"``.

The module is searched in the working directory and in the folders of PYTHONPATH, and nowhere else. Before anything is
imported, a name of the standard library or of an installed package raises an error, and so does code inside a run
folder. No code in a file of a run (checkpoint, weights, recipe) is ever run. An object that the user's module only
imports from elsewhere raises an error too.
"""

from __future__ import annotations

import inspect
import os
import sys
import sysconfig
from collections.abc import Callable, Mapping
from importlib import import_module, invalidate_caches
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from steadyspike.data import DataBundle, from_dataset, from_recordings
from steadyspike.data.wrap_events import is_recording
from steadyspike.nn.factory import Site
from steadyspike.nn.neurons import NeuronSpec
from steadyspike.train.recipe import Recipe, RecipeError, schema
from steadyspike.train.recipe.constructor_options import check_options, kinds_of


def is_own(name: str) -> bool:
    """Returns whether a name in a recipe is the user's code."""
    return ":" in name


def find_own(name: str, key: str) -> Callable[..., Any]:
    """Imports the class or function ``"package.module:Name"``; ``key`` is the key of the recipe that names it."""
    module_name, _, attribute = name.partition(":")
    if not all(part.isidentifier() for part in (*module_name.split("."), attribute)):
        raise RecipeError(f"{key} = {name!r} is not valid; it must be 'package.module:Name'")
    if module_name.endswith(".py"):
        raise RecipeError(f"{key} = {name!r}: leave out .py and write {module_name[:-3]}:{attribute}")
    problem = _why_not_own(module_name)
    if problem is not None:
        raise RecipeError(f"{key} = {name!r}: {problem}")
    try:
        module = import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise  # the user's module exists and fails to import another one
        raise RecipeError(f"{key} = {name!r}: there is no module {error.name}") from None
    made = getattr(module, attribute, None)
    if not callable(made):
        raise RecipeError(f"{key} = {name!r}: {module_name} has no class or function {attribute}")
    home = str(getattr(made, "__module__", None) or type(made).__module__)
    if _why_not_own(home) is not None:
        raise RecipeError(f"{key} = {name!r}: {module_name} only imports {attribute} from {home}; name one of your own")
    return made


def _why_not_own(module_name: str) -> str | None:
    """Returns why the module ``package.module`` is not the user's code, without importing it; None if it is."""
    top, *inner = module_name.split(".")
    asked = [os.getcwd(), *(p for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p)]
    folders = [folder for folder in asked if _run_folder_of(folder) is None]
    invalidate_caches()  # a file written since the process began
    spec = PathFinder.find_spec(top, folders)
    if spec is None:
        text = f"there is no module {top} in the working directory or on PYTHONPATH ({', '.join(asked)})"
        runs = [str(run) for folder in asked if (run := _run_folder_of(folder)) is not None]
        return text + (f"; no code is imported from the run folder {runs[0]}" if runs else "")
    if top in sys.stdlib_module_names or top == __name__.partition(".")[0]:
        return f"{top} is the name of an installed package or a part of Python; rename yours"
    if any(source.is_relative_to(folder) for source in _places(spec) for folder in _installed()):
        return f"{top} is an installed package, but a recipe can name only your own code"
    run = next((run for source in _sources(spec, inner) if (run := _run_folder_of(source)) is not None), None)
    if run is not None:
        return f"no code is imported from the run folder {run}"
    if os.getcwd() in folders and os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # last, so that no file there hides an installed package; it may import later
    loaded = sys.modules.get(top)
    used = _places(find_spec(top) if loaded is None else loaded.__spec__)
    if _places(spec).isdisjoint(used):
        from_where = ", ".join(sorted(map(str, used))) or "elsewhere"
        return f"a module {top} from {from_where} is in use; rename yours"
    return None


def _sources(spec: Any, inner: list[str]) -> set[Path]:
    """Finds files and folders of a package and of the modules ``inner`` inside one another, without importing any.

    Python takes every folder for a package, so a run folder inside the working directory is one too.
    """
    sources = _places(spec)
    for part in inner:
        if spec is None:
            break
        spec = PathFinder.find_spec(part, list(spec.submodule_search_locations or ()))
        sources |= _places(spec)
    return sources


def _run_folder_of(path: str | Path) -> Path | None:
    """Returns the run folder that ``path`` is, or is inside of; None if there is none."""
    here = Path(path).resolve()
    for candidate in (here, *here.parents):
        parts = ("run.json", "origin.json", "result.json", "weights.safetensors", "checkpoints")
        if (candidate / "recipe.toml").exists() and any((candidate / part).exists() for part in parts):
            return candidate
    return None


def _installed() -> list[Path]:
    """Returns the folders of Python's library and of installed packages."""
    return [Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib", "purelib", "platlib")]


def _places(spec: Any) -> set[Path]:
    """Returns files and folders of a package or module."""
    if spec is None:
        return set()
    places = [spec.origin] if spec.has_location else list(spec.submodule_search_locations or ())
    return {Path(path).resolve() for path in places if path}


def _accepts(build: Callable[..., Any]) -> tuple[dict[str, Any], bool]:
    """Names and types of the named arguments of a function, and whether it accepts any name."""
    anything = any(p.kind is p.VAR_KEYWORD for p in inspect.signature(build).parameters.values())
    return kinds_of(build), anything


def _arguments(
    build: Callable[..., Any], given: Mapping[str, Any], options: Mapping[str, Any], key: str
) -> dict[str, Any]:
    """Returns the arguments of ``given`` that it accepts, and the recipe's options, checked against its signature."""
    kinds, anything = _accepts(build)
    for option in options:
        if option in given:
            raise RecipeError(f"{key}.options.{option} cannot be set, because your code gets it in any case")
    if not anything:
        check_options(options, {k: v for k, v in kinds.items() if k not in given}, f"{key}.options")
    return {**{name: value for name, value in given.items() if anything or name in kinds}, **options}


def own_model(
    recipe: Recipe, neuron: NeuronSpec, *, num_classes: int, in_channels: int, image_size: tuple[int, int]
) -> nn.Module:
    """Calls the user's class or function with the keyword arguments that it accepts (docs/training.md)."""
    name, steps = recipe.model.name, recipe.data.timesteps
    build = find_own(name, "model.name")
    kinds, anything = _accepts(build)

    def new_neuron(channels: int = 1, size: tuple[int, ...] | None = None) -> nn.Module:
        """Returns a new layer of the recipe's neuron; ``channels`` is needed for ``neuron.channelwise``."""
        return neuron.at(Site(channels, size, steps))

    unused = {
        "neuron": recipe.neuron != schema.Neuron(),
        "norm": recipe.norm != schema.Norm(),
        "width": recipe.model.width is not None,
    }
    for argument, is_set in unused.items():
        if is_set and argument not in kinds and not anything:
            where = "model.width" if argument == "width" else f"[{argument}]"
            raise RecipeError(f"{where} would have no effect: {name} takes no argument '{argument}'")
    given = {
        "num_classes": num_classes, "in_channels": in_channels, "image_size": image_size, "timesteps": steps,
        "neuron": new_neuron, "norm": recipe.norm.name, "width": recipe.model.width,
    }  # fmt: skip
    model = build(**_arguments(build, given, recipe.model.options, "model"))
    if not isinstance(model, nn.Module):
        raise RecipeError(f"model.name = {name!r} returned {type(model).__name__}; it must return an nn.Module")
    return model


@torch.no_grad()
def check_output(model: nn.Module, x: Tensor, classes: int, timesteps: int, name: str) -> None:
    """Raises an error if the output of the user's network is not [T, B, classes] for a batch of two."""
    mode = model.training
    output = model.eval()(x)
    model.train(mode)
    shape = list(output.shape) if isinstance(output, Tensor) else type(output).__name__
    if shape != [timesteps, 2, classes]:
        raise RecipeError(
            f"model.name = {name!r}: forward returns {shape} for a batch of 2; [T, B, classes] = "
            f"{[timesteps, 2, classes]} is needed"
        )


def check_own_data(table: schema.Data) -> None:
    """Raises an error for options that the user's function does not accept, without calling it."""
    build = find_own(table.name, "data.name")
    _arguments(build, _data_arguments(table, None, None), table.options, "data")
    if table.size is not None and "size" not in _accepts(build)[0]:
        raise RecipeError(f"data.size would have no effect: {table.name} takes no argument 'size'")


def _data_arguments(table: schema.Data, data_dir: str | Path | None, split: str | None) -> dict[str, Any]:
    return {
        "data_dir": None if data_dir is None else Path(data_dir), "split": split or table.split,
        "validation": table.validation, "timesteps": table.timesteps, "size": table.size,
    }  # fmt: skip


def own_data(table: schema.Data, data_dir: str | Path | None, split: str | None) -> DataBundle:
    """Calls the user's function; it returns a data set, a pair (train, test) or a `DataBundle` (docs/training.md)."""
    check_own_data(table)
    build, given = find_own(table.name, "data.name"), _data_arguments(table, data_dir, split)
    made = build(**_arguments(build, given, table.options, "data"))
    if isinstance(made, DataBundle):
        kinds, anything = _accepts(build)
        for key, default in (("split", None), ("validation", schema.Data().validation)):
            if given[key] != default and key not in kinds and not anything:
                raise RecipeError(f"data.{key} would have no effect: {table.name} takes no argument '{key}'")
        return made
    train, test = made if isinstance(made, tuple) else (made, None)
    for part in (train,) if test is None else (train, test):
        if not (hasattr(part, "__len__") and hasattr(part, "__getitem__")):
            raise RecipeError(
                f"data.name = {table.name!r}: a data set has __len__ and __getitem__; it returned "
                f"{type(part).__name__}; a list of (image, class) pairs is enough"
            )
    name = table.name.partition(":")[2]
    if len(train) and is_recording(train[0][0]):
        return from_recordings(
            train, test, timesteps=table.timesteps, name=name, split=given["split"], validation=table.validation
        )
    return from_dataset(train, test, name=name, split=given["split"], validation=table.validation)
