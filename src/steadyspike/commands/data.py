"""`steadyspike data ...`: lists the data sets and draws contact sheets."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from steadyspike.commands.options import DataDir
from steadyspike.data.errors import DataError

app = typer.Typer(help="Data sets: list them with their folders, and draw samples.", no_args_is_help=True)


@app.command("list")
def list_command(data_dir: DataDir = None) -> None:
    """List all data sets with their folders and splits."""
    from steadyspike.data.data_folders import DataFolders
    from steadyspike.data.dataset_catalogue import data_sets

    try:
        folders = DataFolders.of(data_dir, None, download=False)
    except DataError as error:
        raise _ended(error) from None
    width = max(len(name) for name in data_sets())
    typer.echo(f"looked in {folders.data_dir}")
    for name, entry in data_sets().items():
        path = entry.find(folders)
        where = "the folder given as --data-dir" if entry.own_folder else path or "not found"
        typer.echo(f"{name:<{width}}  {entry.about}")
        typer.echo(f"{'':<{width}}  where: {where}; splits: {', '.join(entry.splits)}")


@app.command("show")
def show_command(
    name: Annotated[str, typer.Argument(help="Data set, as `list` names it.")],
    data_dir: DataDir = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="PNG file; default NAME.png.")] = None,
    part: Annotated[str, typer.Option(help="train, validation or test.")] = "train",
    split: Annotated[str | None, typer.Option(help="Split; default: the data set's own.")] = None,
    timesteps: Annotated[int | None, typer.Option("-T", "--timesteps", help="Frames of event data.")] = None,
    per_class: Annotated[int, typer.Option(min=1, help="Samples per class (still images).")] = 8,
    size: Annotated[int | None, typer.Option(help="Side of image-folder images or event frames.")] = None,
    download: Annotated[bool, typer.Option(help="Download what is missing.")] = True,
) -> None:
    """Write a contact sheet: images by class, events as two-colour frames over time, images with their boxes."""
    from steadyspike.data.dataset_catalogue import entry, load
    from steadyspike.train.recipe.kinds import imported, kind_named

    options: dict[str, Any] = {} if size is None else {"size": size}
    try:
        bundle = load(name, data_dir, split=split, timesteps=timesteps, download=download, **options)
        write_sheet = imported(kind_named(entry(name)[1].task).sheet)
        path = write_sheet(bundle, out or Path(f"{bundle.name}.png"), part, per_class)
    except DataError as error:
        raise _ended(error) from None
    typer.echo(str(bundle))
    typer.echo(f"wrote {path}")


def _ended(error: DataError) -> typer.Exit:
    typer.echo(f"error: {error}", err=True)
    return typer.Exit(1)
