"""Prints what the package and some of its extras need, one requirement a line, without building the package.

    python tools/extra_requirements.py train

pip can only name an extra of a package that it installs; `make demo` installs the requirements while the package itself
still compiles.
"""

from __future__ import annotations

import sys
from pathlib import Path

PYPROJECT = Path(__file__).parent.parent / "pyproject.toml"


def requirements(extras: list[str]) -> list[str]:
    """The package's own requirements and those of its extras, as pyproject.toml lists them."""
    try:
        import tomllib
    except ImportError:  # Python 3.10: pip carries the same parser
        from pip._vendor import tomli as tomllib  # type: ignore[no-redef]
    project = tomllib.loads(PYPROJECT.read_text())["project"]
    return [*project["dependencies"], *(r for extra in extras for r in project["optional-dependencies"][extra])]


if __name__ == "__main__":
    print("\n".join(requirements(sys.argv[1:])))
