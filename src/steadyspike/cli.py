"""`steadyspike`: the command line, collected from commands/. A file with a function ``command`` is a command.

Commands import what they need when they run: ``--help``, ``recipes``, ``runs`` and ``show`` import no torch.
"""

from __future__ import annotations

import signal
from importlib import import_module
from pkgutil import iter_modules
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from steadyspike import __version__, commands
from steadyspike.disk.plain_text import plain

# The order of --help; others follow by name.
_ORDER = (
    "train", "evaluate", "recipes", "doctor", "fold", "export", "energy", "benchmark", "predict", "analyse",
    "reproduce", "runs", "show", "report", "compare", "zoo", "plan", "data",
)  # fmt: skip


def _without_type(option: Any) -> Any:
    """A flag whose help shows no type: ``--resume``, not ``--resume <bool>``."""
    if getattr(option, "is_flag", False) and option.metavar is None:
        option.metavar = ""
    return option


class Command(TyperCommand):
    """A command whose help shows no type for flags and whose errors spell out what was typed."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for option in self.params:
            _without_type(option)

    def get_help_option(self, ctx: Any) -> Any:
        return _without_type(super().get_help_option(ctx))

    def parse_args(self, *args: Any) -> list[str]:
        try:
            return super().parse_args(*args)
        except Exception as error:  # typer would print the typed text unchanged, with marks that change its direction
            if isinstance(text := getattr(error, "message", None), str):
                error.message = plain(text)  # type: ignore[attr-defined]
            raise


class Group(TyperGroup):
    """Several commands under one name, whose help shows no type for flags."""

    def get_help_option(self, ctx: Any) -> Any:
        return _without_type(super().get_help_option(ctx))


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"steadyspike {__version__}")
        raise typer.Exit


def common(
    version: Annotated[
        bool, typer.Option("--version", metavar="", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Stable direct training of spiking neural networks: MP-Init and threshold-robust surrogate gradients."""


def collected() -> typer.Typer:
    """All commands; a file with an ``app`` has several under its name."""
    main = typer.Typer(cls=Group, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
    main.callback()(common)
    names = [module.name for module in iter_modules(commands.__path__)]
    for name in sorted(names, key=lambda name: (_ORDER.index(name) if name in _ORDER else len(_ORDER), name)):
        module = import_module(f"steadyspike.commands.{name}")
        if hasattr(module, "command"):
            main.command(name, cls=Command)(module.command)
        elif hasattr(module, "app"):
            main.add_typer(module.app, name=name, cls=Group)
    return main


app = collected()


def main() -> None:
    """The entry point."""
    try:
        app()
    finally:  # the outcome is known and said; a signal while Python winds up must not change the exit code
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)


if __name__ == "__main__":
    main()
