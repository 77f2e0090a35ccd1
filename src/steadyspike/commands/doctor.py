"""`steadyspike doctor`."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from rich.markup import escape

from steadyspike.commands.common import ENDED, FAILED, console

_OPTIONAL = {
    "lightning": "train", "pydantic": "train", "tensorboard": "train", "safetensors": "train",
    "PIL": "data", "aedat": "aedat4", "matplotlib": "analysis", "triton": "triton",
}  # fmt: skip


def _row(name: str, text: str, ok: bool | None = True) -> None:
    mark = {True: "[green]yes[/]", False: "[red]no [/]", None: "[dim] - [/]"}[ok]
    console.print(f"  {mark}  {name:<15} [dim]{escape(text)}[/]", soft_wrap=True, markup=True)


def run(
    recipe: str | None, settings: list[str], devices: int | None, backend: str | None, data_dir: Path | None
) -> int:
    """Prints what there is; 1 if something asked for is missing."""
    _versions()
    _devices()
    _kernels()
    _data(data_dir)
    problems = _asked(recipe, settings, devices, backend, data_dir)
    if all(wish is None for wish in (recipe, devices, backend, data_dir)):
        return ENDED
    console.print("\nasked for", style="bold")
    for problem in problems:
        console.print(f"  cannot run: {problem}", style="red", soft_wrap=True)
    if not problems:
        console.print("  everything asked for can run here", style="green")
    return FAILED if problems else ENDED


def _versions() -> None:
    import importlib.util
    import platform
    from importlib.metadata import version

    import torch

    import steadyspike

    console.print("versions", style="bold")
    _row("steadyspike", f"{steadyspike.__version__}, python {platform.python_version()}, {platform.platform()}")
    _row("torch", f"{torch.__version__}, {torch.get_num_threads()} threads")
    for module, extra in _OPTIONAL.items():
        there = importlib.util.find_spec(module) is not None
        package = {"PIL": "Pillow"}.get(module, module)
        _row(package, version(package) if there else f"install steadyspike[{extra}]", True if there else None)


def _devices() -> None:
    import torch

    console.print("\ndevices", style="bold")
    _row("cpu", f"{os.cpu_count()} cores, {torch.backends.cpu.get_cpu_capability()}")
    if torch.cuda.is_available():
        for i in range(torch.cuda.device_count()):
            p = torch.cuda.get_device_properties(i)
            _row(f"cuda:{i}", f"{p.name}, {p.total_memory / 2**30:.0f} GB")
    else:
        why = "this torch is built without CUDA" if torch.version.cuda is None else "no driver or no GPU"
        _row("cuda", why, None)


def _kernels() -> None:
    import torch

    from steadyspike.core.surrogate import SURROGATES
    from steadyspike.kernels.scan.choose import backend_report, choose_backend

    console.print("\nkernels", style="bold")
    for device in ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",):
        x = torch.empty(0, device=device)
        active = choose_backend("auto", x)
        for name, status in backend_report(x).items():
            note = "active" if name == active else status
            _row(f"{name} ({device})", note, status == "available" or None)
    known = ", ".join(SURROGATES)
    _row("surrogates", f"compiled: {known}; any other, and every subclass, runs on the reference", True)
    _row("spike conv (cpu)", *_spike_convolution())


def _spike_convolution() -> tuple[str, bool | None]:
    """Whether the convolution of spikes can run here, and when torch's dense layers are used instead."""
    from steadyspike.kernels.conv.call import conv_library, instruction_set

    library = conv_library()
    if isinstance(library, str):
        return library, None
    aside = "torch's dense layers under torch.compile, autocast, torch.func and export"
    return f"float32, {instruction_set()}; {aside}", True


def _data(data_dir: Path | None) -> None:
    from steadyspike.data.dataset_catalogue import data_sets
    from steadyspike.data.errors import DataError
    from steadyspike.data.place import Place

    console.print("\ndata", style="bold")
    try:
        place = Place.of(data_dir, None, download=False)
    except DataError as error:
        _row("data folder", str(error), False)
        return
    console.print(f"  looked in {place.data_dir}", style="dim")
    for name, entry in data_sets().items():
        if not entry.own_folder:
            found = entry.find(place)
            _row(name, str(found) if found else "not found", True if found else None)


def _asked(
    recipe: str | None, settings: list[str], devices: int | None, backend: str | None, data_dir: Path | None
) -> list[str]:
    """What was asked for and cannot run, one line each."""
    import torch

    from steadyspike.data.place import Place
    from steadyspike.kernels.scan.choose import choose_backend

    gpus = torch.cuda.device_count()
    checks: list[Callable[[], object]] = []
    if backend is not None:
        checks.append(lambda: choose_backend(backend, torch.empty(0, device="cuda" if gpus else "cpu")))
    if devices is not None:
        checks.append(lambda: _enough(devices, gpus))
    if data_dir is not None:
        checks.append(lambda: Place.of(data_dir, None, download=False))
    if recipe is not None:
        checks += _recipe_checks(recipe, settings, devices, data_dir)
    return list(dict.fromkeys(text for check in checks if (text := _problem(check)) is not None))


def _problem(check: Callable[[], object]) -> str | None:
    """The first line of the error that ``check`` raises; None if it raises none."""
    try:
        check()
    except (RuntimeError, ValueError, OSError) as error:
        return str(error).splitlines()[0]
    return None


def _enough(devices: int, gpus: int) -> None:
    cores = os.cpu_count() or 1
    if gpus and devices > gpus:
        raise ValueError(f"{devices} devices: there are {gpus} GPUs")
    if not gpus and devices > cores:
        raise ValueError(f"{devices} devices: there is no GPU, and {cores} cores for CPU processes")


def _recipe_checks(
    name: str, settings: list[str], devices: int | None, data_dir: Path | None
) -> list[Callable[[], object]]:
    from steadyspike.train.building.data import batch_per_process, load_data
    from steadyspike.train.building.dry_run import check_recipe, dry_run
    from steadyspike.train.recipe import RecipeError, load_recipe
    from steadyspike.train.run.accelerator import accelerator_of

    try:
        recipe = load_recipe(name, settings)
    except RecipeError as error:
        text = str(error)
        return [lambda: _fail(text)]
    return [
        lambda: check_recipe(recipe),
        lambda: dry_run(recipe, data_dir=data_dir),
        lambda: accelerator_of(recipe),
        lambda: batch_per_process(recipe, devices or recipe.train.devices),
        lambda: load_data(recipe.data, data_dir, download=False),
    ]


def _fail(text: str) -> None:
    raise ValueError(text)
