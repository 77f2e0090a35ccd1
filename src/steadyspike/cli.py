"""`steadyspike`: the command line, collected from the files of commands/.

Commands import what they need when they run: ``--help``, ``recipes``, ``runs`` and ``show`` do not import torch.
"""

from __future__ import annotations

import signal
from importlib import import_module
from pkgutil import iter_modules

import typer

from steadyspike import commands
from steadyspike.commands.common import exits
from steadyspike.commands.shared.typer_classes import Command, Group, program
from steadyspike.core.heap import keep_freed_memory

# The order of --help; all others follow by name.
_ORDER = (
    "train", "evaluate", "recipes", "doctor", "fold", "export", "energy", "benchmark", "predict", "analyse",
    "reproduce", "runs", "show", "report", "compare", "zoo", "plan", "data",
)  # fmt: skip


def collected() -> typer.Typer:
    """Collects all commands.

    A file with a function ``command`` is one command; a file with an ``app`` has several under its name.
    """
    main = typer.Typer(cls=Group, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
    main.callback()(program)
    names = [module.name for module in iter_modules(commands.__path__)]
    for name in sorted(names, key=lambda name: (_ORDER.index(name) if name in _ORDER else len(_ORDER), name)):
        module = import_module(f"steadyspike.commands.{name}")
        if hasattr(module, "command"):
            main.command(name, cls=Command)(exits(module.command))
        elif hasattr(module, "app"):
            main.add_typer(module.app, name=name, cls=Group)
    return main


app = collected()


def main() -> None:
    """The entry point."""
    keep_freed_memory()  # the process belongs to one command: large tensors need no new pages at every batch
    try:
        app()
    finally:  # the result is final and was printed; a signal while Python shuts down must not change the exit code
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)


if __name__ == "__main__":
    main()
