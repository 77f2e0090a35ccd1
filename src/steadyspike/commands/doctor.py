"""`steadyspike doctor`."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from steadyspike.commands.common import ENDED, FAILED, console
from steadyspike.commands.options import DataDir, Settings
from steadyspike.commands.shared.diagnosis import Section, sections


def command(
    recipe: Annotated[str | None, typer.Option(help="Check that this recipe can run here.")] = None,
    settings: Settings = None,
    devices: Annotated[int | None, typer.Option(help="Check for this many devices.")] = None,
    backend: Annotated[str | None, typer.Option(help="Check for this kernel: reference, cpu or triton.")] = None,
    data_dir: DataDir = None,
) -> int:
    """Show versions, devices, kernels and data sets of this computer.

    Exits with 1 if something that you asked for cannot run.
    """
    for number, section in enumerate(sections(data_dir)):
        if number:
            console.print()
        _print(section)
    problems = _asked(recipe, settings or [], devices, backend, data_dir)
    if all(wish is None for wish in (recipe, devices, backend, data_dir)):
        return ENDED
    console.print("\nasked for", style="bold")
    for problem in problems:
        console.print(f"  cannot run: {problem}", style="red", soft_wrap=True)
    if not problems:
        console.print("  everything that you asked for can run here", style="green")
    return FAILED if problems else ENDED


def _print(section: Section) -> None:
    marks = {True: "[green]yes[/]", False: "[red]no [/]", None: "[dim] - [/]"}
    console.print(section.title, style="bold")
    if section.note:
        console.print(f"  {section.note}", style="dim")
    for row in section.rows:
        console.print(f"  {marks[row.ok]}  {row.name:<15} [dim]{escape(row.text)}[/]", soft_wrap=True, markup=True)


def _asked(
    recipe: str | None, settings: list[str], devices: int | None, backend: str | None, data_dir: Path | None
) -> list[str]:
    """Returns what was requested and cannot run, one line each."""
    import torch

    from steadyspike.data.data_folders import DataFolders
    from steadyspike.kernels.scan.choose import choose_backend

    gpus = torch.cuda.device_count()
    checks: list[Callable[[], object]] = []
    if backend is not None:
        checks.append(lambda: choose_backend(backend, torch.empty(0, device="cuda" if gpus else "cpu")))
    if devices is not None:
        checks.append(lambda: _enough(devices, gpus))
    if data_dir is not None:
        checks.append(lambda: DataFolders.of(data_dir, None, download=False))
    if recipe is not None:
        checks += _recipe_checks(recipe, settings, devices, data_dir)
    return list(dict.fromkeys(text for check in checks if (text := _problem(check)) is not None))


def _problem(check: Callable[[], object]) -> str | None:
    """Returns the first line of the error that ``check`` raises; None if it raises none."""
    try:
        check()
    except (RuntimeError, ValueError, OSError) as error:
        return str(error).splitlines()[0]
    return None


def _enough(devices: int, gpus: int) -> None:
    cores = os.cpu_count() or 1
    if gpus and devices > gpus:
        raise ValueError(f"{devices} devices: this computer has {gpus} GPUs")
    if not gpus and devices > cores:
        raise ValueError(f"{devices} devices: this computer has no GPU, and {cores} cores for CPU processes")


def _recipe_checks(
    name: str, settings: list[str], devices: int | None, data_dir: Path | None
) -> list[Callable[[], object]]:
    from steadyspike.train.build.data import batch_per_process, load_data
    from steadyspike.train.build.dry_run import check_recipe, dry_run
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
