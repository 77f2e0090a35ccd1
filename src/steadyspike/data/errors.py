"""The only error of the data layer: a sentence that names the file and what to do."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from pathlib import Path

from steadyspike.disk.plain_text import PlainError


class DataError(PlainError, ValueError):
    """Data is missing or damaged, or an option is wrong.

    `path` names the file or folder that caused it, if there is one; the message begins with it.
    """

    def __init__(self, message: str, path: str | Path | None = None) -> None:
        self.path = None if path is None else Path(path)
        super().__init__(message if path is None else f"{path}: {message}")

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (self.args[0], self.path)


def _rebuild(text: str, path: Path | None) -> DataError:
    error = DataError(text)
    error.path = path
    return error


def brief(error: BaseException) -> str:
    """Returns the text of an error on one line, shortened, because a damaged file could make it long."""
    text = " ".join(str(error)[:400].split()) or type(error).__name__
    return text if len(text) <= 200 else text[:200] + "..."


def brief_list(names: Iterable[str], most: int = 8) -> str:
    """Lists the first names in order, for a message; a damaged file could contain any number of names of any length."""
    listed = sorted(names)
    shown = ", ".join(repr(name[:40]) for name in listed[:most]) or "nothing"
    return shown if len(listed) <= most else f"{shown} and {len(listed) - most} more"


def needs(package: str, extra: str, what: str) -> DataError:
    """Builds the error for a missing optional package: it names what needs the package and how to install it."""
    return DataError(f"{what} needs the package '{package}': install it with `pip install 'steadyspike[{extra}]'`.")


def whole_number(name: str, value: object, least: int = 1) -> None:
    """Raises DataError unless the option `name` is a whole number of at least `least`."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise DataError(f"{name} must be a whole number of at least {least}, not {value!r}")


def switch(name: str, value: object) -> None:
    """Raises DataError unless the option `name` is true or false."""
    if not isinstance(value, bool):
        raise DataError(f"{name} must be true or false, not {value!r}")


@contextlib.contextmanager
def disk_errors(path: str | Path, what: str = "cannot be written") -> Iterator[None]:
    """Turns disk errors inside the block (full, read-only, not a folder) into a DataError that names `path`."""
    try:
        yield
    except OSError as error:
        raise DataError(f"{what} ({error.strerror or error})", path) from error
