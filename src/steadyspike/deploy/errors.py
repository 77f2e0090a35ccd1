"""What `steadyspike.deploy` raises when a model or a file cannot be used."""

import importlib.util


class CannotFold(ValueError):
    """The model cannot become a network of binary spikes; the message names the place and what would help."""


class DamagedFile(ValueError):
    """A file that was meant to hold a folded network and does not; the message names the file and what is wrong."""


def missing_package(name: str, extra: str) -> None:
    """Raises an ImportError that says what to install if the package is not there."""
    if importlib.util.find_spec(name) is None:
        raise ImportError(f"this needs the package {name}: pip install 'steadyspike[{extra}]'")
