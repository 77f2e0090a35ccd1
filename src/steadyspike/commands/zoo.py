"""`steadyspike zoo`: the trained networks that come with the library."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from steadyspike.commands.common import ENDED, console, one_line_errors
from steadyspike.commands.options import DataDir
from steadyspike.commands.terminal import bare_table, plain, wide_enough


@one_line_errors
def command(
    name: Annotated[str | None, typer.Argument(help="Show the card of this network, or of a saved folder.")] = None,
    add: Annotated[
        Path | None, typer.Option(metavar="RUN", help="Make an entry of a finished run; NAME is its name.")
    ] = None,
    data_dir: DataDir = None,
    to: Annotated[Path | None, typer.Option(help="With --add: a folder of entries; default: the library's.")] = None,
) -> int:
    """List the trained networks that come with the library: score, size, firing rate, energy, time."""
    if add is not None:
        return add_run(add, name=name, data_dir=data_dir, to=to)
    return show_list() if name is None else show_card(name)


def show_list() -> int:
    """Prints a line per network, with its measurements."""
    from steadyspike.deploy.energy import show_energy
    from steadyspike.zoo.listing import entries

    names = ("name", "data", "T", "score after each step", "parameters", "firing rate", "energy", "time", "size")
    table = bare_table(*names, right=names[4:], fold=(names[3],))
    for entry in entries():
        numbers = entry.numbers
        table.add_row(
            entry.name,
            entry.data,
            str(entry.timesteps),
            entry.written,
            f"{entry.parameters:,}",
            f"{numbers.firing_rate:.1%}",
            "-" if numbers.energy_mj is None else show_energy(numbers.energy_mj),
            f"{numbers.ms:.1f} ms",
            f"{entry.megabytes:.2f} MB",
        )
    wide_enough(console).print(table)
    console.print("energy at 45 nm fp32 and time on one thread: of one sample; `steadyspike zoo NAME` shows the card",
                  style="dim", soft_wrap=True)  # fmt: skip
    return ENDED


def show_card(name: str) -> int:
    """Prints the card of a network of the zoo, or of a folder that `save_pretrained` wrote."""
    from steadyspike.train.files.folder import RunError
    from steadyspike.zoo.pretrained import load

    if not (card := load(name).card):
        raise RunError(f"{name} has no card: ss.save_pretrained(ss.load_run({name!r}), FOLDER) writes one")
    for line in card.splitlines():
        console.print(plain(line), markup=False, soft_wrap=True)
    return ENDED


def add_run(source: Path, name: str | None, data_dir: Path | None, to: Path | None) -> int:
    """Makes an entry from a finished run; its name is that of the recipe without ``zoo-``."""
    from steadyspike.train.files.folder import NETWORKS, RunError
    from steadyspike.zoo.adding import add, name_of

    root = to or NETWORKS
    if to is None and "site-packages" in NETWORKS.parts:
        raise RunError(
            "the zoo belongs to an installed package: add entries in a checkout (pip install -e .), or give --to"
        )
    with console.status("rounding, evaluating and measuring the network"):
        folder = add(source, root / (name or name_of(source)), data_dir)
    console.print(f"wrote {folder}", markup=False, soft_wrap=True)
    return ENDED
