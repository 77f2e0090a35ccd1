"""Data, from archive to batch: `load(name)` gives a bundle whose train, validation and test parts never overlap."""

from steadyspike.data.bundle import DataBundle as DataBundle
from steadyspike.data.dataset import DataSet as DataSet
from steadyspike.data.dataset_catalogue import load as load
from steadyspike.data.dataset_catalogue import names as names
from steadyspike.data.errors import DataError as DataError
from steadyspike.data.events import Events as Events
from steadyspike.data.frames import FrameSettings as FrameSettings
from steadyspike.data.splits import Split as Split
from steadyspike.data.splits import SplitMismatchWarning as SplitMismatchWarning
from steadyspike.data.wrap import from_dataset as from_dataset
from steadyspike.data.wrap_events import from_recordings as from_recordings

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
