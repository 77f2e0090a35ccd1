"""The embedded data sets: real digits on a canvas, and the same before a simulated event camera."""

from __future__ import annotations

import errno
from pathlib import Path

import numpy as np
import pytest
import torch

import steadyspike.data as data
from steadyspike.data.camera import Camera, record
from steadyspike.data.errors import DataError
from steadyspike.data.formats import atis
from steadyspike.data.sets import digits, digits_events

from .samples import assert_same_events


def test_digits_are_placed_whole_and_deterministically() -> None:
    a, b = digits.placed(16, 0), digits.placed(16, 0)
    assert torch.equal(digits.draw(a, 16), digits.draw(b, 16))
    assert not torch.equal(digits.draw(a, 16), digits.draw(digits.placed(16, 1), 16))
    assert len(a) == 1797
    # Drawn on a larger canvas, shifted by the added margin, no ink lies outside of the original canvas.
    wide = digits.draw(digits.Placed(a.digits, a.labels, a.centre + 4, a.scale), 24)
    outside = wide.clone()
    outside[:, 3:21, 3:21] = 0
    assert outside.max() == 0


def test_digits_are_those_of_scikit_learn() -> None:
    raw = pytest.importorskip("sklearn.datasets").load_digits()
    images, labels = digits.originals()
    assert np.array_equal(images, raw.images) and np.array_equal(labels, raw.target)


def test_digits_bundle(shared_cache: Path) -> None:
    bundle = data.load("digits", cache_dir=shared_cache)
    assert (bundle.num_classes, bundle.in_channels, bundle.shape, bundle.timesteps) == (10, 1, (16, 16), None)
    assert bundle.split.fingerprint == "883084ce5cc2a4d1"
    x, _ = next(iter(bundle.train_loader(64)))
    assert x.shape == (64, 1, 16, 16)
    whole = torch.cat([x for x, _ in bundle.eval_loader("train", 500)])
    assert abs(float(whole.mean())) < 0.02 and abs(float(whole.std()) - 1) < 0.02


def test_digits_are_not_trivial(shared_cache: Path) -> None:
    """A linear classifier does well on the plain 8 x 8 digits (91 %); placed on a canvas it no longer does (29 %)."""
    from sklearn.linear_model import RidgeClassifier

    bundle = data.load("digits", cache_dir=shared_cache)
    parts = {p: next(iter(bundle.eval_loader(p, 2000))) for p in ("train", "test")}
    flat = {p: (x.flatten(1).numpy(), y.numpy()) for p, (x, y) in parts.items()}
    score = RidgeClassifier(alpha=10.0).fit(*flat["train"]).score(*flat["test"])
    assert 0.15 < score < 0.6


def test_canvas_too_small() -> None:
    with pytest.raises(DataError, match="canvas must be a whole number of at least 12, not 10"):
        digits.placed(10, 0)


def ramp(start: float, stop: float, steps: int = 5) -> list[tuple[int, np.ndarray]]:
    """One pixel whose log intensity moves from log(start) to log(stop) in a straight line over 1000 us."""
    levels = np.linspace(np.log(start), np.log(stop), steps)
    return [(int(1000 * k / (steps - 1)), np.exp(v).reshape(1, 1, 1)) for k, v in enumerate(levels)]


QUIET = Camera(threshold=0.25, mismatch=0.0, dark=0.0, noise=0.0)


def test_camera_crossings_are_where_the_log_intensity_says() -> None:
    """From 1 to e: thresholds at 0.25, 0.5, 0.75, 1 of the way; the end itself may or may not round onto the last."""
    (events,) = record(ramp(1.0, np.e * 1.0001), QUIET)
    assert events.p.tolist() == [1, 1, 1, 1]
    np.testing.assert_allclose(events.t, [250, 500, 750, 1000], atol=1)
    (events,) = record(ramp(np.e * 1.0001, 1.0), QUIET)
    assert events.p.tolist() == [0, 0, 0, 0]


def test_camera_is_independent_of_how_finely_the_scene_is_sampled() -> None:
    (coarse,), (fine,) = record(ramp(1.0, 5.0, 2), QUIET), record(ramp(1.0, 5.0, 40), QUIET)
    assert len(coarse) == len(fine) == int(np.log(5) / 0.25)
    np.testing.assert_allclose(coarse.t, fine.t, atol=2)


def test_camera_reference_remembers_the_last_event() -> None:
    """Down by less than one threshold and up again: silence; there is no event for a change already reported."""
    scene = [*ramp(1.0, np.exp(0.3)), *((t + 1000, i) for t, i in ramp(np.exp(0.3), np.exp(0.1))[1:])]
    (events,) = record(scene, QUIET)
    assert events.p.tolist() == [1]


def test_a_still_scene_gives_noise_only() -> None:
    scene = [(t, np.full((3, 8, 8), 0.5)) for t in (0, 100_000, 200_000)]
    assert [len(e) for e in record(scene, QUIET)] == [0, 0, 0]
    noisy = record(scene, Camera(noise=50.0))
    assert sum(map(len, noisy)) == pytest.approx(50 * 0.2 * 3 * 64, rel=0.15)
    assert all((np.diff(e.t) >= 0).all() for e in noisy)


def test_simulated_recordings_are_deterministic_sorted_and_round_trip() -> None:
    events, labels = digits_events.simulate(16, Camera())
    again, _ = digits_events.simulate(16, Camera())
    assert len(events) == len(labels) == 1797
    for i in (0, 5, 1796):
        assert_same_events(events[i], again[i])
        assert_same_events(atis.decode(atis.encode(events[i]), (20, 20), "x"), events[i])
        assert (np.diff(events[i].t) >= 0).all()
        assert 0.2 < events[i].p.mean() < 0.8
    other, _ = digits_events.simulate(16, Camera(seed=1))
    assert len(other[0]) != len(events[0]) or not np.array_equal(other[0].t, events[0].t)


def test_digits_events_bundle_shares_the_digits_split(shared_cache: Path) -> None:
    bundle = data.load("digits-events", cache_dir=shared_cache, timesteps=4)
    still = data.load("digits", cache_dir=shared_cache)
    assert bundle.split.fingerprint == still.split.fingerprint
    x, _ = next(iter(bundle.train_loader(32)))
    assert x.shape == (4, 32, 2, 20, 20)
    assert x.sum() > 32 * 200 and x.min() == 0
    by_time = data.load("digits-events", cache_dir=shared_cache, timesteps=3, by="time", size=10)
    plain = next(iter(by_time.eval_loader("test", 8)))[0]
    assert plain.shape == (3, 8, 2, 10, 10)
    three = data.load("digits-events", cache_dir=shared_cache, timesteps=3, by="time", size=10, total=True)
    x = next(iter(three.eval_loader("test", 8)))[0]
    assert three.in_channels == 3 and torch.equal(x[:, :, :2], plain)
    torch.testing.assert_close(x[:, :, 2], plain.sum(2))
    assert by_time.describe()["frames"] == {"timesteps": 3, "by": "time", "size": [10, 10], "antialias": False}


def test_cached_clips_equal_clips_made_now(shared_cache: Path) -> None:
    from steadyspike.data.frames import FrameSettings, clip

    frames = FrameSettings(5, "number", (13, 13))
    bundle = data.load("digits-events", cache_dir=shared_cache, timesteps=5, size=13)
    (folder,) = (p for p in shared_cache.glob("digits-events-*") if p.is_dir())
    x, _ = next(iter(bundle.eval_loader("test", 3)))
    for column, index in enumerate(bundle.split.test[:3]):
        (file,) = folder.glob(f"*/{index:04d}.bin")
        np.testing.assert_array_equal(x[:, column].numpy(), clip(atis.read(file, (20, 20)), frames))


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the first hundred digits, where the simulation has to run again and again."""
    whole = digits.placed

    def first(canvas: int, seed: int) -> digits.Placed:
        p = whole(canvas, seed)
        return digits.Placed(p.digits[:100], p.labels[:100], p.centre[:100], p.scale[:100])

    monkeypatch.setattr(digits, "placed", first)


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("wreck", ["deleted", "truncated", "changed"])
def test_lost_and_damaged_recordings_are_made_again(tmp_path: Path, wreck: str) -> None:
    before = data.load("digits-events", cache_dir=tmp_path, timesteps=1)
    file = digits_events.written(next(p for p in tmp_path.glob("digits-events-*") if p.is_dir()))[3]
    raw = file.read_bytes()
    if wreck == "deleted":
        file.unlink()
    else:
        file.write_bytes(raw[:-2] if wreck == "truncated" else bytes([raw[0] ^ 1]) + raw[1:])
    after = data.load("digits-events", cache_dir=tmp_path, timesteps=1)
    assert file.read_bytes() == raw
    assert after.split.fingerprint == before.split.fingerprint
    assert after.dataset.source.data.filename == before.dataset.source.data.filename  # type: ignore[attr-defined]


@pytest.mark.usefixtures("few")
def test_a_disk_that_refuses_is_one_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, raw: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(DataError, match=r"digits-events-\w+: cannot be written \(No space left on device\)"):
        data.load("digits-events", cache_dir=tmp_path)
    assert not [p for p in tmp_path.iterdir() if p.is_dir()]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"placement_seed": -1}, "placement_seed must be a whole number of at least 0"),
        ({"placement_seed": "a"}, "placement_seed must be a whole number"),
        ({"threshold": "a"}, "threshold must be a finite number"),
        ({"threshold": float("inf")}, "threshold must be a finite number"),
        ({"canvas": 237}, "canvas must be at most 236"),
        ({"antialias": "yes"}, "antialias must be true or false"),
    ],
)
def test_wrong_options_are_refused_before_anything_is_made(tmp_path: Path, wrong: dict, message: str) -> None:
    with pytest.raises(DataError, match=message):
        data.load("digits-events", cache_dir=tmp_path, **wrong)
    assert not list(tmp_path.iterdir())
