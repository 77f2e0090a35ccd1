"""Data, from archive to batch: `load(name)` gives a bundle whose train, validation and test parts never overlap."""

from .bundle import DataBundle as DataBundle
from .dataset import DataSet as DataSet
from .errors import DataError as DataError
from .events import Events as Events
from .frames import FrameSettings as FrameSettings
from .registry import load as load
from .registry import names as names
from .splits import Split as Split
from .splits import SplitMismatchWarning as SplitMismatchWarning
from .wrap import from_dataset as from_dataset
