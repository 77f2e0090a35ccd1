"""Events to frames: against a plain loop, nothing lost, and the resizing trap."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steadyspike.data.errors import DataError
from steadyspike.data.events import Events
from steadyspike.data.frames import FrameSettings, clip, integrate, resize

from .samples import recording


def by_loop(events: Events, timesteps: int, by: str) -> np.ndarray:
    """The definition, one event at a time: N // T events (or span // T us) a frame, the last takes the remainder."""
    frames = np.zeros((timesteps, 2, *events.size), np.int64)
    width = max(len(events) // timesteps, 1)
    start, span = int(events.t.min()), int(events.t.max()) - int(events.t.min())
    duration = max(span // timesteps, 1)
    for i in range(len(events)):
        k = i // width if by == "number" else (int(events.t[i]) - start) // duration
        frames[min(k, timesteps - 1), events.p[i], events.y[i], events.x[i]] += 1
    return frames


@settings(deadline=None, max_examples=60)
@given(
    count=st.integers(1, 300), timesteps=st.integers(1, 12), by=st.sampled_from(["number", "time"]),
    seed=st.integers(0, 99), last=st.integers(1, 5000),
)  # fmt: skip
def test_equal_to_the_loop_and_every_event_counted(count: int, timesteps: int, by: str, seed: int, last: int) -> None:
    events = recording(count, (6, 5), seed, last)
    frames = integrate(events, timesteps, by)
    assert frames.sum() == count
    np.testing.assert_array_equal(frames, by_loop(events, timesteps, by))


def test_number_puts_the_remainder_into_the_last_frame() -> None:
    frames = integrate(recording(1000), 7, "number")
    assert frames.sum(axis=(1, 2, 3)).tolist() == [142] * 6 + [148]


def test_empty_time_bins_are_empty_frames() -> None:
    events = recording(4, (4, 4))
    events = Events(events.x, events.y, np.array([0, 1, 999, 1000]), events.p, events.size)
    assert integrate(events, 5, "time").sum(axis=(1, 2, 3)).tolist() == [2, 0, 0, 0, 2]


def test_fewer_events_than_frames() -> None:
    assert integrate(recording(3), 5, "number").sum(axis=(1, 2, 3)).tolist() == [1, 1, 1, 0, 0]


def test_counts_are_not_clipped() -> None:
    n = 70_000
    events = Events(np.zeros(n, np.uint16), np.zeros(n, np.uint16), np.arange(n), np.ones(n, np.uint8), (2, 2))
    assert clip(events, FrameSettings(1)).max() == n


def test_a_third_channel_is_the_sum_of_both() -> None:
    n, rng = 500, np.random.default_rng(0)
    x, y = (rng.integers(0, 8, n).astype(np.uint16) for _ in range(2))
    events = Events(x, y, np.arange(n), rng.integers(0, 2, n).astype(np.uint8), (8, 8))
    for size in (None, (6, 5)):
        two, three = (clip(events, FrameSettings(4, size=size, total=total)) for total in (False, True))
        assert np.array_equal(three[:, :2], two) and np.allclose(three[:, 2], two[:, 0] + two[:, 1])
        assert three.dtype == two.dtype
    assert FrameSettings(total=True).as_dict()["total"] and "total" not in FrameSettings().as_dict()


def test_resize_without_antialias_keeps_the_contrast_of_the_published_frames() -> None:
    """Poisson(0.3) counts, 128 to 48: standard deviation 0.352 without and 0.137 with antialias."""
    counts = np.random.default_rng(0).poisson(0.3, (20, 2, 128, 128))
    assert resize(counts, (48, 48), antialias=False).std() == pytest.approx(0.352, abs=0.004)
    assert resize(counts, (48, 48), antialias=True).std() == pytest.approx(0.137, abs=0.004)
    assert FrameSettings().antialias is False


def test_resize_is_bilinear_with_half_pixel_centres() -> None:
    """128 to 48 by hand at one pixel: source coordinate (i + 1/2) 8/3 - 1/2."""
    counts = np.random.default_rng(1).integers(0, 9, (1, 2, 128, 128))
    out = resize(counts, (48, 48), antialias=False)
    i, j = 7, 31
    y, x = (i + 0.5) * 128 / 48 - 0.5, (j + 0.5) * 128 / 48 - 0.5
    y0, x0 = int(y), int(x)
    a, b = y - y0, x - x0
    c = counts[0, 1]
    expected = (
        (1 - a) * ((1 - b) * c[y0, x0] + b * c[y0, x0 + 1])
        + a * ((1 - b) * c[y0 + 1, x0] + b * c[y0 + 1, x0 + 1])
    )  # fmt: skip
    assert out[0, 1, i, j] == pytest.approx(expected, rel=1e-5)


def test_clip_keeps_integers_unless_resized() -> None:
    events = recording(50, (8, 8))
    assert np.issubdtype(clip(events, FrameSettings(2)).dtype, np.integer)
    assert np.issubdtype(clip(events, FrameSettings(2, size=(8, 8))).dtype, np.integer)
    assert clip(events, FrameSettings(2, size=(4, 4))).dtype == np.float32


@pytest.mark.parametrize(
    "wrong",
    [
        {"timesteps": 0},
        {"timesteps": "4"},
        {"timesteps": True},
        {"by": "events"},
        {"size": (0, 4)},
        {"size": "48"},
        {"size": (1, 2, 3)},
    ],
)
def test_settings_are_checked(wrong: dict) -> None:
    with pytest.raises(DataError):
        FrameSettings(**wrong)
