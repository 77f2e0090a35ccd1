"""Trained networks in one line: `load`, `save_pretrained`, `push_to_hub`; ``zoo/networks/`` holds the library's own.

Loading and saving need the packages of ``steadyspike[train]``; they are imported when a name is first used.
"""

from importlib import import_module
from typing import Any

_PLACES = {
    "Pretrained": "zoo.pretrained",
    "load": "zoo.pretrained",
    "names": "zoo.pretrained",
    "push_to_hub": "zoo.hub",
    "save_pretrained": "zoo.saving",
}

__all__ = [*_PLACES]


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'steadyspike.zoo' has no attribute {name!r}")
    from steadyspike.deploy.errors import missing_package

    for package in ("pydantic", "safetensors"):
        missing_package(package, "train")
    return getattr(import_module(f"steadyspike.{_PLACES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
