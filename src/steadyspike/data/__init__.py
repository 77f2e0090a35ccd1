"""Data, from archive to batch: `load(name)` gives a bundle whose train, validation and test parts never overlap.

The names below are imported when they are first used, because most of them need torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from steadyspike.data.bundle import DataBundle
    from steadyspike.data.dataset import DataSet
    from steadyspike.data.dataset_catalogue import load, names
    from steadyspike.data.errors import DataError
    from steadyspike.data.events import Events
    from steadyspike.data.frames import FrameSettings
    from steadyspike.data.splits import Split, SplitMismatchWarning
    from steadyspike.data.wrap import from_dataset
    from steadyspike.data.wrap_events import from_recordings

_WHERE = {
    "DataBundle": "bundle",
    "DataSet": "dataset",
    "load": "dataset_catalogue",
    "names": "dataset_catalogue",
    "DataError": "errors",
    "Events": "events",
    "FrameSettings": "frames",
    "Split": "splits",
    "SplitMismatchWarning": "splits",
    "from_dataset": "wrap",
    "from_recordings": "wrap_events",
}

__all__ = [
    "DataBundle",
    "DataError",
    "DataSet",
    "Events",
    "FrameSettings",
    "Split",
    "SplitMismatchWarning",
    "from_dataset",
    "from_recordings",
    "load",
    "names",
]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'steadyspike.data' has no attribute {name!r}")
    return getattr(import_module(f"steadyspike.data.{_WHERE[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
