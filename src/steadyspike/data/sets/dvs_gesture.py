"""DVS128-Gesture: AEDAT 3.1 recordings of several gestures each.

A clip is one gesture, cut as the labels file states.

The publisher's lists trials_to_train.txt and trials_to_test.txt are the official parts (1176 and 288 clips). The data
must be downloaded by hand. A pre-cut version that is also in use has other clips; do not compare results with it.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from steadyspike.data.augment import Augment
from steadyspike.data.clip_cache import cached_clips
from steadyspike.data.data_folders import DataFolders
from steadyspike.data.dataset import DataSet
from steadyspike.data.download import Remote
from steadyspike.data.errors import DataError, brief
from steadyspike.data.events import TIME_LIMIT, read_bytes
from steadyspike.data.formats import aedat31
from steadyspike.data.frames import FrameSettings, clip
from steadyspike.data.sets.recordings import progress, stamp
from steadyspike.data.sources import ArraySource
from steadyspike.data.splits import Population

ARCHIVE = Remote(
    "DvsGesture.tar.gz", "https://research.ibm.com/interactive/dvsgesture/", "8a5c71fb11e24e5ca5b11866ca6c00a1"
)
FOLDERS = (
    "DvsGesture",
    "DVS128Gesture",
    "dvs-gesture",
    "DVS128Gesture/extract/DvsGesture",
    "DVS128Gesture/download",
    ".",
)
# The largest number of bytes of a list of recordings or of gestures; the published ones have less than 10,000.
MOST_TEXT = 1 << 20
TRAIN_LIST, TEST_LIST = "trials_to_train.txt", "trials_to_test.txt"
CLASSES = (
    "hand clapping", "right hand wave", "left hand wave", "right arm clockwise", "right arm counter clockwise",
    "left arm clockwise", "left arm counter clockwise", "arm roll", "air drums", "air guitar", "other gestures",
)  # fmt: skip


@dataclass(frozen=True)
class Gesture:
    label: int
    start: int
    stop: int


def load(folders: DataFolders, frames: FrameSettings) -> DataSet:
    root = locate(folders)
    lists = {name: trial_list(root, name) for name in (TRAIN_LIST, TEST_LIST)}
    if both := set(lists[TRAIN_LIST]) & set(lists[TEST_LIST]):
        raise DataError(f"lists '{min(both).name}', which {TRAIN_LIST} lists too", root / TEST_LIST)
    trials = [(path, name == TEST_LIST) for name, paths in lists.items() for path in paths]
    gestures = [(path, is_test, gesture_list(path)) for path, is_test in trials]
    ids = [f"{path.stem}/{i:02d}" for path, _, of_file in gestures for i in range(len(of_file))]
    labels = np.array([g.label for _, _, of_file in gestures for g in of_file], np.int64)
    official = np.array([is_test for _, is_test, of_file in gestures for _ in of_file])
    recordings = [(path, of_file) for path, _, of_file in gestures]
    files = [file for path, _ in recordings for file in (path, labels_file(path))]
    settings = {"reader": "aedat31-1", "files": stamp(files), "frames": frames.as_dict()}
    cache = folders.within("clips")
    shape = (frames.timesteps, frames.channels, *(frames.size or aedat31.SIZE))
    clips = cached_clips(
        cache.cache_dir, "dvs-gesture", settings, len(ids), lambda: cut_clips(recordings, frames), cache.ready, shape
    )
    return DataSet(
        name="dvs-gesture",
        source=ArraySource(clips),
        population=Population(ids, labels, official),
        classes=CLASSES,
        channels=frames.channels,
        size=frames.size or aedat31.SIZE,
        timesteps=frames.timesteps,
        augment=Augment(padding=4, flip=False),  # mirroring turns a left-hand gesture into a right-hand one
        settings={"frames": frames.as_dict()},
    )


def cut_clips(recordings: list[tuple[Path, list[Gesture]]], frames: FrameSettings) -> Iterator[tuple[int, Any]]:
    """Yields the clips in order; every recording is decoded once."""
    index = 0
    for path, gestures in progress(recordings, "dvs-gesture: events to frames"):
        events = aedat31.read(path)
        for gesture in gestures:
            cut = events.between(gesture.start, gesture.stop)
            if len(cut) == 0:
                raise DataError(f"has no events between {gesture.start} and {gesture.stop} us", path)
            yield index, clip(cut, frames)
            index += 1


def find(folders: DataFolders) -> Path | None:
    for name in FOLDERS:
        for inner in (TRAIN_LIST, ARCHIVE.name):
            if (folders.data_dir / name / inner).is_file():
                return folders.data_dir / name / inner
    return None


def locate(folders: DataFolders) -> Path:
    for name in FOLDERS:
        if (folders.data_dir / name / TRAIN_LIST).is_file():
            return folders.data_dir / name
    folder = folders.unpacked(ARCHIVE, FOLDERS)
    if folder is None:
        raise DataError(
            f"DVS128-Gesture was not found; put {ARCHIVE.name} (from {ARCHIVE.url}) there", folders.data_dir
        )
    return folder / "DvsGesture" if (folder / "DvsGesture").is_dir() else folder


def trial_list(root: Path, name: str) -> list[Path]:
    path = root / name
    if not path.is_file():
        raise DataError("is missing: it lists the recordings of one part", path)
    lines = read_bytes(path, MOST_TEXT).decode("utf-8", "replace").splitlines()
    trials = [root / line.strip() for line in lines if line.strip()]
    if not trials:
        raise DataError("lists no recordings", path)
    seen: set[Path] = set()
    for trial in trials:
        if trial in seen:
            raise DataError(f"lists '{trial.name}' twice", path)
        if trial.parent != root or not _is_there(trial):
            raise DataError(f"lists '{trial.name[:80]}', which is not there", path)
        seen.add(trial)
    return trials


def _is_there(trial: Path) -> bool:
    try:
        return "\0" not in trial.name and trial.is_file()
    except OSError:  # the name is too long for the file system
        return False


def labels_file(recording: Path) -> Path:
    return recording.with_name(recording.stem + "_labels.csv")


def gesture_list(recording: Path) -> list[Gesture]:
    """Returns the gestures of one recording: class (1-11), start and end in microseconds."""
    path = labels_file(recording)
    try:
        text = read_bytes(path, MOST_TEXT).decode()
        rows = [[int(cell) for cell in row[:3]] for row in list(csv.reader(io.StringIO(text, newline="")))[1:] if row]
        gestures = [Gesture(label - 1, start, stop) for label, start, stop in rows]
    except DataError:
        raise
    except (ValueError, csv.Error) as error:
        raise DataError(f"is not a labels file (class,startTime_usec,endTime_usec): {brief(error)}", path) from error
    if not gestures or not all(0 <= g.label < len(CLASSES) and 0 <= g.start < g.stop < TIME_LIMIT for g in gestures):
        raise DataError("holds no gestures, a class outside 1-11 or one that ends before it starts", path)
    return gestures
