"""The exceptions of `steadyspike.deploy` for models and files that cannot be used."""

import importlib.util

from steadyspike.disk.plain_text import PlainError


class CannotFold(PlainError, ValueError):
    """The model cannot become a network of binary spikes; the message names the layer and what would help."""


class DamagedFile(PlainError, ValueError):
    """A file that should contain a folded network and does not; the message names the file and what is wrong."""


class MissingPackage(PlainError, ImportError):
    """An optional package that is not installed; the message names the command that installs it."""


def missing_package(name: str, extra: str) -> None:
    """Raises a `MissingPackage` that names what to install if the package is missing."""
    if importlib.util.find_spec(name) is None:
        raise MissingPackage(f"this needs the package {name}: pip install 'steadyspike[{extra}]'")
