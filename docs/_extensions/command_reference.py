"""Writes the reference pages that are read from the code: the commands, and the data sets.

A page asks for one by a comment, for example ``<!-- generated: commands -->``, which is replaced when Sphinx reads it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import typer

from steadyspike.data import dataset_catalogue


def commands() -> str:
    """Returns every command of the command line with its arguments and options, as Markdown."""
    from steadyspike.cli import app

    return "\n".join(_command(name, command) for name, command in _leaves(typer.main.get_command(app), ""))


def _leaves(group: Any, prefix: str) -> list[tuple[str, Any]]:
    """Returns the commands below a group by their full name; a command of commands stands for its own."""
    leaves = []
    for name, command in sorted(group.commands.items()):
        full = f"{prefix} {name}".strip()
        leaves += _leaves(command, full) if getattr(command, "commands", None) else [(full, command)]
    return leaves


def _command(name: str, command: Any) -> str:
    context = typer.Context(command, info_name=f"steadyspike {name}")
    usage = command.get_usage(context).removeprefix("Usage: ").strip()
    rows = [
        f"| `{_plain_types(left)}` | {_cell(right)} |"
        for parameter in command.get_params(context)
        if parameter.name != "help" and (record := parameter.get_help_record(context))
        for left, right in [record]
    ]
    table = ["", "| argument or option | |", "|---|---|", *rows] if rows else []
    return "\n".join([f"## `{name}`", "", command.help or "", "", "```text", usage, "```", *table, ""])


def _plain_types(text: str) -> str:
    """Writes click's names of types as a reader would: ``<list[Path]>`` becomes ``PATH ...``."""
    words = {
        "int range": "INTEGER",
        "float range": "NUMBER",
        "int": "INTEGER",
        "float": "NUMBER",
        "str": "TEXT",
        "path": "PATH",
    }

    def plain(match: re.Match[str]) -> str:
        name = match[1].lower()
        many = name.startswith("list[")
        inner = name.removeprefix("list[").removesuffix("]")
        repeated = " ..." if many and not text[: match.start()].rstrip().endswith("...") else ""
        return words.get(inner, inner.upper()) + repeated

    return re.sub(r"<([A-Za-z \[\]]+)>", plain, text)


def _cell(text: str) -> str:
    return re.sub(r"\s*\[required\]", " Required.", text.replace("|", r"\|")).replace("[default:", "[default:")


def data_sets() -> str:
    """Returns a table of all data sets that `ss.data.load` takes, as Markdown."""
    rows = ["| name | what it is | classes | a sample | splits | default T |", "|---|---|---|---|---|---|"]
    for name in sorted(dataset_catalogue.names()):
        entry = dataset_catalogue.entry(name)[1]
        shape, frames = entry.shape, entry.frames
        size = f"{shape.channels} x {shape.size[0]} x {shape.size[1]}"
        splits = ", ".join(f"`{split}`" for split in entry.splits)
        steps = frames.timesteps if frames else "-"
        rows.append(f"| `{name}` | {entry.about} | {shape.classes} | {size} | {splits} | {steps} |")
    return "\n".join(rows)


PARTS: dict[str, Callable[[], str]] = {"commands": commands, "data sets": data_sets}


def setup(app: Any) -> dict[str, bool]:
    def replace(app: Any, page: str, source: list[str]) -> None:
        source[0] = re.sub(r"<!-- generated: ([a-z ]+) -->", lambda match: PARTS[match[1]](), source[0])

    app.connect("source-read", replace)
    return {"parallel_read_safe": True}
