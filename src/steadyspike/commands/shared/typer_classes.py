"""The classes of the program and its commands for typer: help without types for flags, and escaped error messages."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from steadyspike import __version__
from steadyspike.disk.plain_text import plain


def _without_type(option: Any) -> Any:
    """A flag whose help shows no type: ``--resume``, not ``--resume <bool>``."""
    if getattr(option, "is_flag", False) and option.metavar is None:
        option.metavar = ""
    return option


class Command(TyperCommand):
    """A command whose help shows no type for flags, and whose errors spell out control characters of the input."""

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


def program(
    version: Annotated[
        bool, typer.Option("--version", metavar="", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Stable direct training of spiking neural networks: MP-Init and threshold-robust surrogate gradients."""
