"""Event data of the user's own: a folder of recordings, and recordings or clips held in Python."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import steadyspike.data as data
from steadyspike.data.formats import atis
from steadyspike.data.frames import integrate
from tests.data.samples import aedat4_bytes, recording

SIZE = (12, 10)


def write_folder(root, parts=("train", "test"), each=3):
    for part in parts:
        for label, name in enumerate(("left", "right")):
            folder = root / part / name if part else root / name
            folder.mkdir(parents=True)
            for i in range(each):
                events = recording(60, SIZE, seed=10 * label + i)
                (folder / f"{i}.bin").write_bytes(atis.encode(events))
    return root


def test_a_folder_of_recordings_is_a_data_set(tmp_path):
    bundle = data.load("event-folder", write_folder(tmp_path), timesteps=4, sensor=SIZE, validation="none")
    assert bundle.classes == ("left", "right") and bundle.timesteps == 4 and bundle.shape == SIZE
    assert len(bundle.indices("train")) == len(bundle.indices("test")) == 6
    ((x, y),) = list(bundle.eval_loader("test", 8))
    assert x.shape == (4, 6, 2, *SIZE) and y.tolist() == [0, 0, 0, 1, 1, 1]
    expected = integrate(recording(60, SIZE, seed=11), 4)
    assert torch.equal(x[:, 4], torch.from_numpy(expected).float())


def test_class_folders_alone_are_split_at_random(tmp_path):
    bundle = data.load("event-folder", write_folder(tmp_path, ("",), 5), timesteps=2, sensor=list(SIZE), size=6)
    assert bundle.split.name.startswith("random:0") and bundle.shape == (6, 6)


def test_files_that_name_their_sensor_need_no_option(tmp_path):
    pytest.importorskip("aedat")
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        for i in range(3):
            (tmp_path / name / f"{i}.aedat4").write_bytes(aedat4_bytes(recording(50, SIZE, seed=i)))
    assert data.load("event-folder", tmp_path, timesteps=2).shape == SIZE


@pytest.mark.parametrize(
    ("options", "text"),
    [({}, "give sensor"), ({"sensor": 12}, "height, width"), ({"sensor": (4, 4)}, "outside the 4 x 4 sensor")],
)
def test_a_sensor_that_is_unknown_or_wrong_is_one_error(tmp_path, options, text):
    with pytest.raises(data.DataError, match=text):
        data.load("event-folder", write_folder(tmp_path), timesteps=2, **options)


def test_other_mistakes_of_a_folder(tmp_path):
    with pytest.raises(data.DataError, match="needs data_dir"):
        data.load("event-folder")
    (tmp_path / "a").mkdir()
    with pytest.raises(data.DataError, match="without any recording"):
        data.load("event-folder", tmp_path, sensor=SIZE)


class Tonic(list):
    """As tonic's data sets: structured arrays of events, and the sensor as (width, height, polarities)."""

    sensor_size = (SIZE[1], SIZE[0], 2)
    classes = ("left", "right")


def structured(events):
    kind = np.dtype([("x", np.int16), ("y", np.int16), ("t", np.int64), ("p", bool)])
    array = np.empty(len(events), kind)
    for field in ("x", "y", "t", "p"):
        array[field] = getattr(events, field)
    return array


def test_recordings_in_python_become_clips():
    events = [recording(40, SIZE, seed=i) for i in range(8)]
    forms = (lambda e: e, structured, lambda e: {"x": e.x, "y": e.y, "t": e.t, "p": e.p})
    for form in forms:
        pool = Tonic((form(e), i % 2) for i, e in enumerate(events))
        bundle = data.from_recordings(pool, pool, timesteps=3, by="time", validation="none")
        ((x, y),) = list(bundle.eval_loader("test", 8))
        assert x.shape == (3, 8, 2, *SIZE) and bundle.classes == ("left", "right") and y.tolist() == [0, 1] * 4
        assert torch.equal(x[:, 5], torch.from_numpy(integrate(events[5], 3, "time")).float())
        assert bundle.describe()["frames"]["by"] == "time"


@pytest.mark.parametrize(
    ("item", "text"),
    [
        (np.zeros((3, 4)), "a recording with x, y, t and p"),
        ({"x": np.zeros(2), "y": [0, 0], "t": [0, 1], "p": [0, 1]}, "whole numbers"),
        ({"x": [0, 1], "y": [0], "t": [0, 1], "p": [0, 1]}, "different lengths"),
        ({"x": [0, -1], "y": [0, 0], "t": [0, 1], "p": [0, 1]}, "negative"),
        ({"x": [0, 1], "y": [0, 0], "t": [0, 1], "p": [0, 2]}, "p must be 0 or 1"),
        ({"x": [0, 99], "y": [0, 0], "t": [0, 1], "p": [0, 1]}, "outside the 10 x 12 sensor"),
        ({"x": [], "y": [], "t": [], "p": []}, "whole numbers|no events"),
    ],
)  # fmt: skip
def test_what_is_no_recording_is_named(item, text):
    with pytest.raises(data.DataError, match=text):
        data.from_recordings([(item, 0)] * 4, sensor=SIZE)


def test_arrays_without_a_sensor_ask_for_it():
    with pytest.raises(data.DataError, match="give sensor"):
        data.from_recordings([(structured(recording(9, SIZE)), 0)] * 4)


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.uint16, np.int64, np.float32])
def test_clips_of_frames_are_taken_as_they_are(dtype):
    clips = np.random.default_rng(0).integers(0, 9, (8, 3, 2, 5, 4)).astype(dtype)
    pool = [(clips[i], i % 2) for i in range(8)]
    bundle = data.from_dataset(pool, pool, validation="none")
    ((x, _),) = list(bundle.eval_loader("test", 8))
    assert bundle.timesteps == 3 and bundle.in_channels == 2 and bundle.shape == (5, 4)
    assert torch.equal(x, torch.from_numpy(clips.astype(np.float32)).transpose(0, 1))


def test_clips_of_counts_can_be_augmented_but_not_normalised():
    pool = [(torch.ones(3, 2, 6, 6, dtype=torch.uint8), i % 2) for i in range(8)]
    bundle = data.from_dataset(pool, augment={"padding": 2}, validation="none")
    x, _ = next(iter(bundle.train_loader(4, seed=1)))
    assert x.shape[0] == 3 and float(x.min()) == 0 and torch.equal(x[0], x[1])
    with pytest.raises(data.DataError, match="not normalised"):
        data.from_dataset(pool, mean=(0.5, 0.5))
