"""From a list of event files to a DataSet of cached clips, for all event data sets."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from steadyspike.data.augment import Augment
from steadyspike.data.clip_cache import cached_clips
from steadyspike.data.data_folders import DataFolders
from steadyspike.data.dataset import DataSet
from steadyspike.data.errors import DataError, disk_errors
from steadyspike.data.events import Events
from steadyspike.data.frames import FrameSettings, clip
from steadyspike.data.sources import ArraySource
from steadyspike.data.splits import Population

Read = Callable[[Path], Events]
T = TypeVar("T")


@dataclass(frozen=True)
class Recordings:
    """Event files of one sensor. `reader` names the decoder and its version: it is part of the cache key.

    identity: a hash of the files' contents, if it is available; otherwise a hash of their names, sizes and modification
    times.
    """

    name: str
    files: Sequence[Path]
    read: Read
    reader: str
    sensor: tuple[int, int]
    identity: str | None = None


def stamp(files: Iterable[Path]) -> list[list[Any]]:
    """Returns name, size and modification time of every file: a cache made from other files must not be used."""
    stamps: list[list[Any]] = []
    for file in files:
        with disk_errors(file, "cannot be read"):
            info = file.stat()
        stamps.append(["/".join(file.parts[-3:]), info.st_size, info.st_mtime_ns])
    return stamps


def clips_of(recordings: Recordings, frames: FrameSettings) -> Iterator[tuple[int, Any]]:
    for index, file in enumerate(progress(recordings.files, f"{recordings.name}: events to frames")):
        events = recordings.read(file)
        if events.size != recordings.sensor:
            (height, width), (rows, columns) = recordings.sensor, events.size
            raise DataError(
                f"is from a sensor of {columns} x {rows} pixels; {recordings.name} has {width} x {height}", file
            )
        yield index, clip(events, frames)


def progress(items: Sequence[T], text: str) -> Iterable[T]:
    """Yields `items` with a progress bar on a terminal."""
    if not sys.stderr.isatty() or len(items) < 200:
        return items
    try:
        from tqdm import tqdm
    except ImportError:
        return items
    bar: Iterable[T] = tqdm(items, desc=text, unit="clip")
    return bar


def event_dataset(
    folders: DataFolders, recordings: Recordings, population: Population, frames: FrameSettings, **more: Any
) -> DataSet:
    """Builds the DataSet of the recordings' clips; `more` holds further DataSet fields."""
    identity = recordings.identity or stamp(recordings.files)
    settings = {"reader": recordings.reader, "files": identity, "frames": frames.as_dict()}
    cache = folders.within("clips")
    clips = cached_clips(
        cache.cache_dir,
        recordings.name,
        settings,
        len(recordings.files),
        lambda: clips_of(recordings, frames),
        cache.ready,
        (frames.timesteps, frames.channels, *(frames.size or recordings.sensor)),
    )
    more.setdefault("augment", Augment())
    more["settings"] = {"frames": frames.as_dict(), **more.get("settings", {})}
    return DataSet(
        name=recordings.name,
        source=ArraySource(clips),
        population=population,
        channels=frames.channels,
        size=frames.size or recordings.sensor,
        timesteps=frames.timesteps,
        **more,
    )
