"""Data sets by name: `load("cifar10", data_dir=...)`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from steadyspike.data.bundle import DataBundle
from steadyspike.data.data_folders import DataFolders
from steadyspike.data.dataset import DataSet, adjusted
from steadyspike.data.errors import DataError
from steadyspike.data.frames import FrameSettings
from steadyspike.data.sets import (
    cifar,
    digits,
    digits_events,
    dvs_cifar10,
    dvs_gesture,
    event_folder,
    image_folder,
    mnist,
    nmnist,
)
from steadyspike.data.splits import make_split


class Shape(NamedTuple):
    """The shape of a data set: number of classes, channels, and (height, width) of a sample."""

    classes: int
    channels: int
    size: tuple[int, int]


@dataclass(frozen=True)
class Entry:
    """A data set: how to load and find it, a description, its shape and splits, and for event data the default frames.

    task: what networks learn from it; networks are registered with the same name
    own_folder: data_dir is the data set itself, not a folder that holds data sets
    """

    load: Callable[..., DataSet]
    find: Callable[[DataFolders], Path | str | None]
    about: str
    shape: Shape
    splits: tuple[str, ...] = ("official",)
    frames: FrameSettings | None = None
    task: str = "classification"
    own_folder: bool = False


def _imagenet_root(folders: DataFolders) -> Path | None:
    for name in ("ILSVRC2012", "imagenet", "ImageNet", "."):
        if (folders.data_dir / name / "train").is_dir() and (folders.data_dir / name / "val").is_dir():
            return folders.data_dir / name
    return None


def _load_imagenet(
    folders: DataFolders,
    size: int = 224,
    policy: str = "resized-crop",
    resize: int | None = None,
    least_area: float = 0.08,
    interpolation: str = "bilinear",
) -> DataSet:
    if (root := _imagenet_root(folders)) is None:
        raise DataError(
            "ImageNet was not found: ILSVRC2012/train/<wnid>/*.JPEG and ILSVRC2012/val/<wnid>/*.JPEG are expected",
            folders.data_dir,
        )
    return image_folder.load(folders, "imagenet", root, size, policy, resize, least_area, interpolation)


def _load_folder(
    folders: DataFolders,
    size: int = 224,
    policy: str = "resized-crop",
    resize: int | None = None,
    least_area: float = 0.08,
    interpolation: str = "bilinear",
) -> DataSet:
    return image_folder.load(folders, "folder", folders.data_dir, size, policy, resize, least_area, interpolation)


def _embedded(folders: DataFolders) -> str:
    return "embedded"


def _spec_entry(module: Any, spec: Any, about: str, shape: Shape) -> Entry:
    def load_spec(folders: DataFolders) -> DataSet:
        loaded: DataSet = module.load(folders, spec)
        return loaded

    return Entry(load_spec, lambda folders: module.find(folders, spec), about, shape)


def _cifar(spec: cifar.Spec, about: str) -> Entry:
    def load_cifar(folders: DataFolders, size: int = cifar.SIDE) -> DataSet:
        return cifar.load(folders, spec, size)

    return Entry(load_cifar, lambda folders: cifar.find(folders, spec), about, Shape(spec.classes, 3, (32, 32)))


DATA_SETS: dict[str, Entry] = {
    "digits": Entry(
        digits.load, _embedded, "1,797 handwritten digits on a 16 x 16 canvas", Shape(10, 1, (16, 16)), ("random:SEED",)
    ),
    "digits-events": Entry(
        digits_events.load, _embedded, "the same digits in front of a simulated event camera", Shape(10, 2, (20, 20)),
        ("random:SEED",), FrameSettings(timesteps=6),
    ),
    "cifar10": _cifar(cifar.CIFAR10, "32 x 32 colour, 10 classes"),
    "cifar100": _cifar(cifar.CIFAR100, "32 x 32 colour, 100 classes"),
    "mnist": _spec_entry(mnist, mnist.MNIST, "28 x 28 grey digits", Shape(10, 1, (28, 28))),
    "fashion-mnist": _spec_entry(mnist, mnist.FASHION, "28 x 28 grey clothes", Shape(10, 1, (28, 28))),
    "imagenet": Entry(
        _load_imagenet, _imagenet_root, "ILSVRC2012, train/<wnid> and val/<wnid>", Shape(1000, 3, (224, 224))
    ),
    "imagenette": Entry(
        image_folder.load_imagenette, image_folder.find_imagenette, "ten easy classes of ImageNet, 96 x 96",
        Shape(10, 3, (96, 96)),
    ),
    "folder": Entry(
        _load_folder, lambda p: None, "any image folder: data_dir with train/<class> and val/<class>, or <class> only",
        Shape(10, 3, (224, 224)),  # the number depends on the user's folder; ten is used until the folder is read
        ("official", "random:SEED"), own_folder=True,
    ),
    "event-folder": Entry(
        event_folder.load, lambda p: None, "any folder of .aedat4, .aedat or .bin recordings in class folders",
        Shape(10, 2, (128, 128)), ("official", "random:SEED"), FrameSettings(timesteps=10), own_folder=True,
    ),
    "nmnist": Entry(
        nmnist.load, nmnist.find, "N-MNIST, 34 x 34 events", Shape(10, 2, (34, 34)), frames=FrameSettings(timesteps=10)
    ),
    "dvs-cifar10": Entry(
        dvs_cifar10.load, dvs_cifar10.find, "DVS-CIFAR10 (CIFAR10-DVS), 128 x 128 events resized to 48 x 48",
        Shape(10, 2, (48, 48)), ("tebn", "tet", "random:SEED"), FrameSettings(timesteps=10, size=(48, 48)),
    ),
    "dvs-gesture": Entry(
        dvs_gesture.load, dvs_gesture.find, "DVS128-Gesture, 128 x 128 events", Shape(11, 2, (128, 128)),
        frames=FrameSettings(timesteps=16),
    ),
    "dvs128-objects": Entry(
        event_folder.load_objects, event_folder.find_objects,
        "five objects in front of a DVS128 camera, resized to 64 x 64",
        Shape(5, 2, (64, 64)), frames=FrameSettings(timesteps=6, size=(64, 64)),
    ),
}  # fmt: skip
ALIASES = {
    "cifar10-dvs": "dvs-cifar10",
    "cifar10dvs": "dvs-cifar10",
    "n-mnist": "nmnist",
    "dvs128-gesture": "dvs-gesture",
}
# Packages that add data sets and build on this one. They are imported when a name is first looked up.
ROOMS = ("steadyspike.detection.sets",)
FRAME_OPTIONS = ("by", "size", "antialias", "total")
COMMON_OPTIONS = ("augment", "mean", "std")


def register(name: str, added: Entry) -> None:
    """Adds a data set; raises ValueError if the name exists."""
    if name in DATA_SETS:
        raise ValueError(f"a data set named {name!r} exists already; register it under another name")
    DATA_SETS[name] = added


def data_sets() -> dict[str, Entry]:
    """Returns all data sets by name."""
    for room in ROOMS:
        import_module(room)
    return DATA_SETS


def names() -> tuple[str, ...]:
    """Returns the names that `load` accepts."""
    return tuple(data_sets())


def entry(name: str) -> tuple[str, Entry]:
    """Returns the canonical name and the catalogue entry; raises DataError with the valid names if there is none."""
    canonical = ALIASES.get(str(name).lower(), str(name).lower())
    if canonical not in data_sets():
        raise DataError(f"there is no data set '{name}'; valid are {', '.join(DATA_SETS)}")
    return canonical, DATA_SETS[canonical]


def expected_shape(
    name: str, size: int | Sequence[int] | None = None, canvas: int | None = None, total: bool = False
) -> Shape:
    """Returns the shape of a data set's samples without reading its files; size, canvas and total are as in `load`."""
    canonical, data_entry = entry(name)
    classes, channels, sides = data_entry.shape
    if total and data_entry.frames is not None:
        channels = replace(data_entry.frames, total=True).channels
    if isinstance(size, int):
        sides = (size, size)
    elif size is not None:
        sides = (size[0], size[1])
    elif canvas is not None:
        side = canvas + (2 * digits_events.MARGIN if canonical == "digits-events" else 0)
        sides = (side, side)
    return Shape(classes, channels, sides)


def load(
    name: str,
    data_dir: str | Path | None = None,
    *,
    split: str | None = None,
    validation: str = "holdout",
    timesteps: int | None = None,
    download: bool = True,
    cache_dir: str | Path | None = None,
    **options: Any,
) -> DataBundle:
    """Loads a data set, split and ready for loaders.

    data_dir: the folder that holds data sets (downloads go there too); default: the user's cache folder
    split: "official", "tebn", "tet" or "random:SEED"; default: the data set's own
    validation: "holdout[:FRACTION[:SEED]]", "none" or "test" (see `make_split`)
    timesteps: frames of event data
    options: the options of the data set:
    - for event data: by ("number" or "time"), size ((height, width) or None), antialias, total (adds a third channel,
      the sum of both polarities);
    - for a folder of recordings also: sensor ((height, width)), axes;
    - for image folders: size, policy, resize, least_area, interpolation;
    - for all: augment ({"padding": 4, "flip": True, "crop": 24}, or "none"), mean, std
    """
    name, data_entry = entry(name)
    folders = DataFolders.of(data_dir, cache_dir, download)
    if data_entry.own_folder and data_dir is None:
        raise DataError(f"'{name}' needs data_dir=..., the folder itself")
    common = {key: options.pop(key) for key in COMMON_OPTIONS if key in options}
    dataset = adjusted(_load(data_entry, name, folders, timesteps, options), **common)
    split_name = dataset.default_split if split is None else split
    chosen = make_split(dataset.population, split_name, validation, dataset.test_fraction, dataset.name)
    return dataset.bundle(chosen)


def load_options(data_entry: Entry) -> list[str]:
    """Returns the options of a data set: the arguments of its `load`, except the folders (the first) and the frames."""
    return [name for name in list(inspect.signature(data_entry.load).parameters)[1:] if name != "frames"]


def _load(
    data_entry: Entry, name: str, folders: DataFolders, timesteps: int | None, options: dict[str, Any]
) -> DataSet:
    accepted = load_options(data_entry)
    frame_options = FRAME_OPTIONS if data_entry.frames is not None else ()
    for option in options:
        if option not in (*accepted, *frame_options):
            valid = ", ".join((*accepted, *frame_options, *COMMON_OPTIONS))
            raise DataError(f"data set '{name}' has no option '{option}'; its options are: {valid}")
    if data_entry.frames is None:
        return data_entry.load(folders, **options)
    chosen = {key: options.pop(key) for key in FRAME_OPTIONS if key in options}
    return data_entry.load(folders, frame_settings(data_entry.frames, timesteps, chosen), **options)


def frame_settings(default: FrameSettings, timesteps: int | None, chosen: dict[str, Any]) -> FrameSettings:
    """Returns `default` with the given number of frames and options; a single number as size means a square."""
    merged: dict[str, Any] = {**asdict(default), **chosen}
    if timesteps is not None:
        merged["timesteps"] = timesteps
    if isinstance(merged["size"], int):
        merged["size"] = (merged["size"], merged["size"])
    if isinstance(merged["size"], list):
        merged["size"] = tuple(merged["size"])
    return FrameSettings(**merged)
