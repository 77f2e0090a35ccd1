"""N-MNIST, DVS-CIFAR10 and DVS128-Gesture as their archives lay them out, made small."""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import zipfile
from pathlib import Path

import numpy as np
import pytest

import steadyspike.data as data
from steadyspike.data.data_folders import DataFolders
from steadyspike.data.download import Remote
from steadyspike.data.errors import DataError
from steadyspike.data.formats import aedat2, aedat31, atis
from steadyspike.data.frames import FrameSettings, clip
from steadyspike.data.sets import dvs_cifar10, dvs_gesture, nmnist

from .samples import aedat4_bytes, recording


@pytest.fixture
def digits_dir(tmp_path: Path) -> Path:
    root = tmp_path / "data"
    for part, count in (("Train", 4), ("Test", 2)):
        for digit in range(10):
            folder = root / "N-MNIST" / part / str(digit)
            folder.mkdir(parents=True)
            for i in range(count):
                (folder / f"{i:05d}.bin").write_bytes(atis.encode(recording(60, (34, 34), seed=digit * 100 + i)))
    return root


def write_dvs(root: Path, count: int = 12, start: int = 95, suffix: str = ".aedat") -> Path:
    for label, name in enumerate(dvs_cifar10.CIFAR10_NAMES):
        (root / name).mkdir(parents=True)
        for i in range(start, start + count):
            events = recording(80, seed=label * 1000 + i)
            raw = aedat2.encode(events) if suffix == ".aedat" else aedat4_bytes(events)
            (root / name / f"cifar10_{name}_{i}{suffix}").write_bytes(raw)
    return root


def test_nmnist(digits_dir: Path) -> None:
    bundle = data.load("n-mnist", digits_dir, timesteps=3)
    assert str(bundle).startswith("nmnist: 10 classes, T=3, 2 x 34 x 34, 30 train, 10 validation, 20 test")
    x, _ = next(iter(bundle.eval_loader("test", 20)))
    assert x.shape == (3, 20, 2, 34, 34)
    assert x.sum() == 20 * 60
    expected = clip(recording(60, (34, 34), seed=301), FrameSettings(3))
    position = bundle.dataset.population.ids.index("test/3/00001")
    np.testing.assert_array_equal(x[:, list(bundle.split.test).index(position)].numpy(), expected)


def test_nmnist_from_archives(digits_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "zipped"
    out.mkdir()
    remotes = []
    for part in ("Train", "Test"):
        with zipfile.ZipFile(out / f"{part}.zip", "w") as z:
            for file in sorted((digits_dir / "N-MNIST" / part).rglob("*.bin")):
                z.write(file, file.relative_to(digits_dir / "N-MNIST"))
        raw = (out / f"{part}.zip").read_bytes()
        remotes.append(Remote(f"{part}.zip", "http://127.0.0.1:1/", hashlib.md5(raw).hexdigest()))
    with pytest.raises(DataError, match=r"Train\.zip: has md5"):
        data.load("nmnist", out, download=False)
    monkeypatch.setattr(nmnist, "ARCHIVES", tuple(remotes))
    a, b = data.load("nmnist", out, download=False), data.load("nmnist", digits_dir)
    assert a.split.fingerprint == b.split.fingerprint
    assert len(a.dataset.source) == 60


@pytest.mark.parametrize("wreck", ["truncated", "empty", "outside"])
def test_a_damaged_recording_is_named_and_leaves_no_cache(digits_dir: Path, wreck: str) -> None:
    bad = digits_dir / "N-MNIST" / "Train" / "7" / "00002.bin"
    raw = bad.read_bytes()
    bad.write_bytes({"truncated": raw[:-2], "empty": b"", "outside": b"\x22" + raw[1:]}[wreck])
    with pytest.raises(DataError, match=r"7/00002\.bin"):
        data.load("nmnist", digits_dir)
    assert not list((digits_dir / ".steadyspike").rglob("*.npy"))
    bad.write_bytes(raw)
    assert len(data.load("nmnist", digits_dir).dataset.source) == 60


def test_an_empty_class_folder_is_named(digits_dir: Path) -> None:
    for file in (digits_dir / "N-MNIST" / "Test" / "4").iterdir():
        file.unlink()
    with pytest.raises(DataError, match=r"Test/4: is a class folder without any \.bin"):
        data.load("nmnist", digits_dir)


def test_changed_files_and_settings_make_a_new_cache(digits_dir: Path) -> None:
    def entries() -> int:
        return len([p for p in (digits_dir / ".steadyspike" / "clips").iterdir() if p.is_dir()])

    data.load("nmnist", digits_dir)
    data.load("nmnist", digits_dir)
    assert entries() == 1
    data.load("nmnist", digits_dir, by="time")
    assert entries() == 2
    file = digits_dir / "N-MNIST" / "Train" / "0" / "00000.bin"
    file.write_bytes(atis.encode(recording(61, (34, 34))))
    assert data.load("nmnist", digits_dir).dataset.source.data[0].sum() == 61  # type: ignore[attr-defined]
    assert entries() == 3


def test_dvs_cifar10_splits_by_the_number_in_the_name(tmp_path: Path) -> None:
    """Numbers 95..106: TEBN tests 95-99. Lexicographic or listing order would choose others."""
    write_dvs(tmp_path / "data" / "CIFAR10DVS")
    bundle = data.load("cifar10-dvs", tmp_path / "data", timesteps=4, validation="none")
    ids = bundle.dataset.population.ids
    assert {ids[i] for i in bundle.split.test} == {
        f"{n}/{i}" for n in dvs_cifar10.CIFAR10_NAMES for i in range(95, 100)
    }
    x, _ = next(iter(bundle.train_loader(5)))
    assert x.shape == (4, 5, 2, 48, 48)
    assert bundle.describe()["frames"] == {"timesteps": 4, "by": "number", "size": [48, 48], "antialias": False}
    full = data.load("dvs-cifar10", tmp_path / "data", size=None, split="random:1")
    assert full.shape == (128, 128)
    with pytest.raises(DataError, match="leaves 120 training and 0 test"):
        data.load("dvs-cifar10", tmp_path / "data", split="tet", validation="none")


def test_dvs_cifar10_from_aedat4(tmp_path: Path) -> None:
    pytest.importorskip("aedat")
    write_dvs(tmp_path / "data" / "dvs-cifar10", count=3, start=98, suffix=".aedat4")
    bundle = data.load("dvs-cifar10", tmp_path / "data", timesteps=2, validation="none")
    assert len(bundle.split.test) == 20


def test_dvs_cifar10_bad_names(tmp_path: Path) -> None:
    root = write_dvs(tmp_path / "data" / "dvs-cifar10", count=3)
    os.rename(root / "cat" / "cifar10_cat_96.aedat", root / "cat" / "again_95.aedat")
    with pytest.raises(DataError, match="has the same number as"):
        data.load("dvs-cifar10", tmp_path / "data")
    os.rename(root / "cat" / "again_95.aedat", root / "cat" / "without.aedat")
    with pytest.raises(DataError, match="no number at the end"):
        data.load("dvs-cifar10", tmp_path / "data")
    for file in (root / "cat").iterdir():
        file.unlink()
    with pytest.raises(DataError, match=r"cat: is a class folder without any \.aedat"):
        data.load("dvs-cifar10", tmp_path / "data", download=False)


def test_dvs_cifar10_from_class_archives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = write_dvs(tmp_path / "made", count=3, start=99)
    (tmp_path / "data").mkdir()
    remotes = {}
    for name in dvs_cifar10.CIFAR10_NAMES:
        path = tmp_path / "data" / f"{name}.zip"
        with zipfile.ZipFile(path, "w") as z:
            for file in (made / name).iterdir():
                z.write(file, f"{name}/{file.name}")
        remotes[name] = Remote(path.name, "http://127.0.0.1:1/", hashlib.md5(path.read_bytes()).hexdigest())
    monkeypatch.setattr(dvs_cifar10, "ARCHIVES", remotes)
    assert len(data.load("dvs-cifar10", tmp_path / "data", download=False).split.test) == 10


def test_dvs_cifar10_from_the_second_release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One archive of ten archives; its own hash vouches for what is inside."""
    pytest.importorskip("aedat")
    made = write_dvs(tmp_path / "made", count=3, start=99, suffix=".aedat4")
    (tmp_path / "data").mkdir()
    outer = tmp_path / "data" / "CIFAR10DVS.zip"
    with zipfile.ZipFile(outer, "w") as z:
        for name in dvs_cifar10.CIFAR10_NAMES:
            buffer = io.BytesIO()
            with zipfile.ZipFile(buffer, "w") as inner:
                for file in (made / name).iterdir():
                    inner.write(file, f"{name}/{file.name}")
            z.writestr(f"CIFAR10DVS/{name}.zip", buffer.getvalue())
    with pytest.raises(DataError, match=r"CIFAR10DVS\.zip: has md5"):
        data.load("dvs-cifar10", tmp_path / "data", download=False)
    md5 = hashlib.md5(outer.read_bytes()).hexdigest()
    monkeypatch.setattr(dvs_cifar10, "SECOND", Remote(outer.name, "http://127.0.0.1:1/", md5))
    bundle = data.load("dvs-cifar10", tmp_path / "data", download=False, timesteps=2)
    assert len(bundle.dataset.source) == 30 and len(bundle.split.test) == 10


@pytest.fixture
def gestures(tmp_path: Path) -> Path:
    root = tmp_path / "data" / "DvsGesture"
    root.mkdir(parents=True)
    for number, part in enumerate(("train", "train", "test")):
        events = recording(400, seed=number, last=1000)
        (root / f"user{number:02d}_led.aedat").write_bytes(aedat31.encode(events))
        rows = "".join(f"{k + 1},{k * 90},{k * 90 + 80}\n" for k in range(11))
        (root / f"user{number:02d}_led_labels.csv").write_text("class,startTime_usec,endTime_usec\n" + rows)
        with open(root / f"trials_to_{part}.txt", "a") as handle:
            handle.write(f"user{number:02d}_led.aedat\n")
    return root


def test_dvs_gesture_cuts_recordings_by_their_labels(gestures: Path) -> None:
    bundle = data.load("dvs-gesture", gestures.parent, timesteps=2, validation="none")
    assert (len(bundle.split.train), len(bundle.split.test)) == (22, 11)
    x, y = next(iter(bundle.eval_loader("test", 11)))
    assert y.tolist() == list(range(11))
    events = aedat31.read(gestures / "user02_led.aedat")
    for k in range(11):
        np.testing.assert_array_equal(x[:, k].numpy(), clip(events.between(k * 90, k * 90 + 80), FrameSettings(2)))


def test_dvs_gesture_bad_files(gestures: Path) -> None:
    labels = gestures / "user01_led_labels.csv"
    text = labels.read_text()
    for wrong in (
        text.replace("11,900", "12,900"),
        text.replace("5,360,440", "5,440,360"),
        "class\n",
        text + "a,b,c\n",
    ):
        labels.write_text(wrong)
        with pytest.raises(DataError, match=r"user01_led_labels\.csv"):
            data.load("dvs-gesture", gestures.parent)
    labels.write_text(text + "3,5000,6000\n")
    with pytest.raises(DataError, match=r"user01_led\.aedat: has no events between 5000"):
        data.load("dvs-gesture", gestures.parent)
    (gestures / "trials_to_test.txt").write_text("../elsewhere.aedat\n")
    with pytest.raises(DataError, match=r"trials_to_test\.txt: lists 'elsewhere.aedat', which is not there"):
        data.load("dvs-gesture", gestures.parent)
    with pytest.raises(DataError, match=r"put DvsGesture\.tar\.gz"):
        dvs_gesture.locate(DataFolders.of(gestures.parent.parent, None, False))


def test_nmnist_with_one_part_only(digits_dir: Path) -> None:
    shutil.rmtree(digits_dir / "N-MNIST" / "Test")
    with pytest.raises(DataError, match="N-MNIST/Test: is missing, but Train is there"):
        data.load("nmnist", digits_dir, download=False)


def test_dvs_cifar10_of_another_sensor(tmp_path: Path) -> None:
    pytest.importorskip("aedat")
    root = write_dvs(tmp_path / "data" / "dvs-cifar10", count=3, start=98, suffix=".aedat4")
    (root / "cat" / "cifar10_cat_99.aedat4").write_bytes(aedat4_bytes(recording(50, (260, 346))))
    for size in (48, None):
        with pytest.raises(DataError, match=r"cat_99\.aedat4: is from a sensor of 346 x 260 pixels.* 128 x 128"):
            data.load("dvs-cifar10", tmp_path / "data", size=size)


def test_dvs_cifar10_with_both_kinds_of_file(tmp_path: Path) -> None:
    root = write_dvs(tmp_path / "data" / "dvs-cifar10", count=3, start=98)
    (root / "dog" / "cifar10_dog_300.aedat4").write_bytes(aedat4_bytes(recording(50)))
    with pytest.raises(DataError, match=r"dog_300\.aedat4: is an \.aedat4 recording, .* keep one kind"):
        data.load("dvs-cifar10", tmp_path / "data")


def test_dvs_gesture_recordings_listed_twice(gestures: Path) -> None:
    (gestures / "trials_to_test.txt").write_text("user00_led.aedat\nuser02_led.aedat\n")
    with pytest.raises(DataError, match=r"trials_to_test\.txt: lists 'user00_led\.aedat', which trials_to_train"):
        data.load("dvs-gesture", gestures.parent)
    (gestures / "trials_to_test.txt").write_text("user02_led.aedat\nuser02_led.aedat\n")
    with pytest.raises(DataError, match=r"trials_to_test\.txt: lists 'user02_led\.aedat' twice"):
        data.load("dvs-gesture", gestures.parent)
