"""Shared code of all commands: the console, and one-line messages for errors that the user can fix."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec

from typer import Exit

from steadyspike.commands.terminal import SafeConsole
from steadyspike.disk.plain_text import PlainError
from steadyspike.extras import advice

P = ParamSpec("P")

ENDED, FAILED = 0, 1
console = SafeConsole()
errors = SafeConsole(stderr=True)


def one_line_errors(command: Callable[P, int]) -> Callable[P, int]:
    """Prints an expected error as one red line and exits with code 1.

    Any other error keeps its traceback, because it is a bug.
    """

    @wraps(command)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> int:
        try:
            return command(*args, **kwargs)
        except ModuleNotFoundError as error:
            if (text := advice(error, "this command")) is None:
                raise
            errors.print(f"error: {text}", style="red", markup=False, soft_wrap=True)
            return FAILED
        except Exception as error:
            message = _plain(error)
            if not isinstance(message, (PlainError, OSError)):
                raise
            errors.print(f"error: {_text(message)}", style="red", soft_wrap=True)
            return FAILED

    return wrapped


def exits(command: Callable[P, int]) -> Callable[P, None]:
    """Ends the program with the exit code that a command returns."""

    @wraps(command)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> None:
        raise Exit(command(*args, **kwargs))

    return wrapped


def run_or_name(text: str) -> Path:
    """Returns the folder of the run that is given to a command: a path, or a name of `steadyspike zoo`."""
    from steadyspike.train.files.folder import find_packaged, run_folder

    return Path(text) if find_packaged(text) is None else run_folder(text)


def _plain(error: Exception) -> Exception:
    """Returns a plain error if the system killed a process that decodes images; otherwise the error itself."""
    if "DataLoader" not in str(error):
        return error  # without the import below, which takes seconds if the command has not made it yet
    from steadyspike.data.sources import worker_ended

    return worker_ended(error) or error


def _text(error: Exception) -> str:
    """Returns the message of an error; an error of the operating system is shown with its file."""
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{error.filename}: {error.strerror}"
    return str(error)


def print_scores(part: str, scores: dict[str, Any], rest: str) -> None:
    """Prints the scores of a part of the data: one line, or a table for this kind of run.

    rest: further lines
    """
    from steadyspike.train.recipe.kinds import imported, kind_of_result

    kind = kind_of_result(scores)
    if kind.scores:
        console.print(imported(kind.scores)(scores))
        console.print(f"{part}: {rest}", soft_wrap=True)
        return
    values = kind.test_scores(scores)
    after = f" after 1..{len(values)} time steps" if kind.classifies else ""
    listed = ", ".join(map(kind.measure.number, values))
    unit = f" {kind.measure.unit}".rstrip()
    console.print(f"{part} {kind.measure.name}{after}: {listed}{unit}, {rest}", soft_wrap=True)


def record_number(root: Path, recipe: str | None) -> None:
    """Records a run's numbers and prints which."""
    from steadyspike.results.recording import record
    from steadyspike.train.files.folder import RunFolder

    entry = record(RunFolder(root), recipe)
    console.print(f"recorded {entry.value} {entry.unit} (seed {entry.seed}) of {entry.recipe}", soft_wrap=True)
