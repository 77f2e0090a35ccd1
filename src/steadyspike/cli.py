"""`steadyspike`: the command line. Commands import what they need when they run, so that --help is quick."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    help="Stable direct training of spiking neural networks: MP-Init and threshold-robust surrogate gradients.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="TABLE.KEY=VALUE", help="Change a key of the recipe; may be given several times."),
]
DataDir = Annotated[Path | None, typer.Option("--data-dir", help="Folder that holds data sets.")]


@app.command()
def train(
    recipe: Annotated[str, typer.Argument(help="A name that `steadyspike recipes` lists, or a .toml file.")],
    settings: Settings = None,
    data_dir: DataDir = None,
    devices: Annotated[int | None, typer.Option(help="Processes: GPUs, or CPU processes without one.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue a run that was stopped or killed.")] = False,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Run folder; default: runs/RECIPE/001.")] = None,
) -> None:
    """Train a recipe. Exit codes: 0 ended (also a run that diverged), 130 and 143 stopped by a signal: use --resume."""
    from steadyspike.commands.train import run

    raise typer.Exit(run(recipe, settings or [], data_dir, devices, resume, out))


@app.command()
def evaluate(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")],
    data_dir: DataDir = None,
    part: Annotated[str, typer.Option(help="train, validation or test.")] = "test",
    split: Annotated[str | None, typer.Option(help="Another split than the run's; warns.")] = None,
) -> None:
    """Evaluate the weights of a run and compare with the number it logged."""
    from steadyspike.commands.evaluate import run

    raise typer.Exit(run(folder, data_dir, part, split))


@app.command()
def recipes(
    match: Annotated[str, typer.Argument(help="Only names that contain this.")] = "",
    bases: Annotated[bool, typer.Option("--bases", help="Also those that others only build on.")] = False,
) -> None:
    """List the recipes with the paper's number and the measured ones."""
    from steadyspike.commands.recipes import run

    raise typer.Exit(run(match, bases))


@app.command()
def doctor(
    recipe: Annotated[str | None, typer.Option(help="Check that this recipe can run here.")] = None,
    settings: Settings = None,
    devices: Annotated[int | None, typer.Option(help="Check for this many devices.")] = None,
    backend: Annotated[str | None, typer.Option(help="Check for this kernel: reference, cpu or triton.")] = None,
    data_dir: DataDir = None,
) -> None:
    """Versions, devices, kernels and data found. Exits with 1 if something that was asked for cannot run."""
    from steadyspike.commands.doctor import run

    raise typer.Exit(run(recipe, settings or [], devices, backend, data_dir))


def _mount_data() -> None:
    from steadyspike.commands.data import app as data_app

    app.add_typer(data_app, name="data")


_mount_data()


def main() -> None:
    """The entry point."""
    try:
        app()
    finally:  # the outcome is known and said; a signal while Python winds up must not change the exit code
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)


if __name__ == "__main__":
    main()
