"""Event files: hand-made bytes with known events, round trips, and the traps of each format."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

import steadyspike.data as data
from steadyspike.data.errors import DataError
from steadyspike.data.events import Events
from steadyspike.data.formats import aedat2, aedat4, aedat31, atis
from steadyspike.data.frames import FrameSettings, clip

from .samples import aedat4_bytes, assert_same_events, recording


def test_atis_reads_known_bytes() -> None:
    """x=3 y=5 on at 0x010203 us, x=33 y=0 off at 0x7fffff us: the polarity is the top bit of the 24-bit word."""
    raw = bytes([3, 5, 0x80 | 0x01, 0x02, 0x03]) + bytes([33, 0, 0x7F, 0xFF, 0xFF])
    events = atis.decode(raw, (34, 34), "a.bin")
    assert events.x.tolist() == [3, 33]
    assert events.y.tolist() == [5, 0]
    assert events.p.tolist() == [1, 0]
    assert events.t.tolist() == [0x010203, 0x7FFFFF]


def test_atis_overflow_marks_move_all_later_times() -> None:
    """y == 240 is not a pixel: every event after it is 2^13 us later; two marks add up."""

    def event(y: int, t: int) -> bytes:
        return bytes([1, y, t >> 16, (t >> 8) & 255, t & 255])

    raw = event(2, 100) + event(240, 0) + event(2, 100) + event(240, 0) + event(3, 50)
    events = atis.decode(raw, (34, 34), "a.bin")
    assert events.t.tolist() == [100, 100 + 8192, 50 + 2 * 8192]
    assert events.y.tolist() == [2, 2, 3]


def test_atis_round_trip(tmp_path: Path) -> None:
    events = recording(size=(34, 34))
    (tmp_path / "a.bin").write_bytes(atis.encode(events))
    assert_same_events(atis.read(tmp_path / "a.bin"), events)


def test_atis_refuses_to_write_what_it_cannot_hold() -> None:
    with pytest.raises(ValueError, match="times"):
        atis.encode(recording(last=1 << 24))
    with pytest.raises(ValueError, match="rows"):
        atis.encode(recording(size=(260, 260)))


def test_aedat2_is_upright() -> None:
    """Raw x=10, y=20, polarity bit 1 at 7 us is x' = 127 - 20, y' = 127 - 10, polarity 0."""
    raw = b"#!AER-DAT2.0\r\n# note\r\n" + struct.pack(">II", 1 | (10 << 1) | (20 << 8), 7)
    events = aedat2.decode(raw, "a.aedat")
    assert (events.x[0], events.y[0], events.t[0], events.p[0]) == (107, 117, 7, 0)


def test_aedat2_of_a_camera_that_was_not_rotated(tmp_path: Path) -> None:
    """Bits 1-7 are x and 8-14 are y, both counted from the lower right corner."""
    raw = aedat2.MAGIC + b"\r\n" + struct.pack(">II", (3 << 1) | (100 << 8), 5)
    rotated, upright = aedat2.decode(raw, "a.aedat"), aedat2.decode(raw, "a.aedat", axes="camera")
    assert (upright.x.tolist(), upright.y.tolist()) == ([124], [27])
    assert (rotated.x.tolist(), rotated.y.tolist()) == ([27], [124])
    with pytest.raises(DataError, match="axes must be dvs-cifar10 or camera"):
        aedat2.decode(raw, "a.aedat", axes="upside-down")
    for part in ("left", "right"):
        (tmp_path / "all" / part).mkdir(parents=True)
        for i in range(3):
            (tmp_path / "all" / part / f"{i}.aedat").write_bytes(raw)
    for axes, (row, column) in (("camera", (27, 124)), ("dvs-cifar10", (124, 27))):
        bundle = data.load("event-folder", tmp_path / "all", cache_dir=tmp_path / "cache", timesteps=1, axes=axes)
        x, _ = next(iter(bundle.eval_loader("test", 1)))
        assert int(x[0, 0, :, row, column].sum()) == 1, "clips of one reading are not taken for those of the other"


def test_aedat2_drops_external_marks_and_unwraps_time() -> None:
    head = b"#!AER-DAT2.0\r\n"
    rows = [(0, 0xFFFF_FFF0), (1 << 15, 0xFFFF_FFF8), (2, 5)]
    events = aedat2.decode(head + b"".join(struct.pack(">II", *row) for row in rows), "a.aedat")
    assert events.t.tolist() == [0xFFFF_FFF0, (1 << 32) + 5]


def test_aedat2_round_trip(tmp_path: Path) -> None:
    events = recording()
    (tmp_path / "a.aedat").write_bytes(aedat2.encode(events))
    assert_same_events(aedat2.read(tmp_path / "a.aedat"), events)


def test_aedat31_reads_known_bytes_and_skips_other_packets() -> None:
    special = aedat31.PACKET.pack(0, 0, 8, 4, 0, 1, 1, 1) + b"\xff" * 8
    valid = (9 << 17) | (4 << 2) | (1 << 1) | 1
    invalid = (9 << 17) | (4 << 2)
    polarity = aedat31.PACKET.pack(1, 0, 8, 4, 2, 2, 2, 1) + struct.pack("<IIII", valid, 77, invalid, 78)
    events = aedat31.decode(b"#!AER-DAT3.1\r\n" + aedat31.END + special + polarity, "a.aedat")
    assert len(events) == 1
    assert (events.x[0], events.y[0], events.p[0], events.t[0]) == (9, 4, 1, (2 << 31) + 77)


def test_aedat31_round_trip_over_packets_and_a_time_overflow(tmp_path: Path) -> None:
    events = recording(500)
    events = Events(events.x, events.y, events.t * 20_000, events.p, events.size)
    assert events.t[-1] > 1 << 31
    (tmp_path / "a.aedat").write_bytes(aedat31.encode(events, packet=64))
    assert_same_events(aedat31.read(tmp_path / "a.aedat"), events)


def test_aedat4_through_the_package(tmp_path: Path) -> None:
    pytest.importorskip("aedat")
    events = recording(50)
    (tmp_path / "a.aedat4").write_bytes(aedat4_bytes(events))
    assert_same_events(aedat4.read(tmp_path / "a.aedat4"), events)


@pytest.mark.parametrize(
    ("read", "encode", "address"),
    [
        (atis.read, lambda e: atis.encode(e), 0),
        (aedat31.read, lambda e: aedat31.encode(e), None),
        (aedat4.read, aedat4_bytes, None),
    ],
    ids=["atis", "aedat31", "aedat4"],
)
def test_event_off_the_sensor_names_file_and_address(tmp_path: Path, read, encode, address) -> None:  # type: ignore[no-untyped-def]
    size = (34, 34) if address == 0 else (128, 128)
    good = recording(20, size)
    x = good.x.copy()
    x[7] = 200
    path = tmp_path / "bad.events"
    path.write_bytes(encode(Events(x, good.y, good.t, good.p, size)))
    with pytest.raises(DataError, match=r"bad\.events: event 7 has address \(x=200"):
        read(path)


def test_aedat2_address_outside_the_sensor(tmp_path: Path) -> None:
    path = tmp_path / "bad.aedat"
    path.write_bytes(b"#!AER-DAT2.0\r\n" + struct.pack(">IIII", 0, 1, 1 << 20, 2))
    with pytest.raises(DataError, match=r"bad\.aedat: event 1 has address 0x100000, outside the 128 x 128"):
        aedat2.read(path)


@pytest.mark.parametrize("read", [atis.read, aedat2.read, aedat31.read, aedat4.read])
def test_missing_empty_and_foreign_files(tmp_path: Path, read) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(DataError, match=r"none\.bin: cannot be read"):
        read(tmp_path / "none.bin")
    (tmp_path / "empty.bin").write_bytes(b"")
    with pytest.raises(DataError, match=r"empty\.bin: is empty"):
        read(tmp_path / "empty.bin")
    (tmp_path / "text.bin").write_bytes(b"this is no event file at all")
    with pytest.raises(DataError, match=r"text\.bin"):
        read(tmp_path / "text.bin")


@pytest.mark.parametrize("by", ["number", "time"])
def test_a_header_without_events_is_an_empty_recording(by: str) -> None:
    for events in (
        aedat2.decode(b"#!AER-DAT2.0\r\n# only a header\r\n", "a.aedat"),
        aedat31.decode(b"#!AER-DAT3.1\r\n" + aedat31.END, "a.aedat"),
    ):
        assert len(events) == 0 and events.size == (128, 128)
        frames = clip(events, FrameSettings(timesteps=3, by=by, size=(8, 8)))
        assert frames.shape == (3, 2, 8, 8) and not frames.any()


def test_between_cuts_half_open() -> None:
    events = recording(100)
    cut = events.between(int(events.t[10]), int(events.t[50]))
    assert cut.t.min() >= events.t[10] and cut.t.max() < events.t[50]
    assert len(cut) == np.count_nonzero((events.t >= events.t[10]) & (events.t < events.t[50]))


def test_an_event_off_the_sensor_is_numbered_as_in_the_file() -> None:
    """Overflow marks are records too: seven of them and one good event lie before the bad one."""
    raw = bytes([1, 240, 0, 0, 0]) * 7 + bytes([1, 1, 0, 0, 1]) + bytes([40, 1, 0, 0, 2])
    with pytest.raises(DataError, match=r"a\.bin: event 8 has address \(x=40, y=1\)"):
        atis.decode(raw, (34, 34), "a.bin")
