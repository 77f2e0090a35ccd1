"""Small data made by hand: recordings, .aedat4 bytes, CIFAR files."""

from __future__ import annotations

import pickle
import struct
from pathlib import Path

import numpy as np

from steadyspike.data.events import Events


def recording(count: int = 200, size: tuple[int, int] = (128, 128), seed: int = 0, last: int = 300_000) -> Events:
    random = np.random.default_rng(seed)
    return Events(
        random.integers(0, size[1], count).astype(np.uint16),
        random.integers(0, size[0], count).astype(np.uint16),
        np.sort(random.integers(0, last, count)).astype(np.int64),
        random.integers(0, 2, count).astype(np.uint8),
        size,
    )


def assert_same_events(a: Events, b: Events) -> None:
    assert a.size == b.size
    for name in ("x", "y", "t", "p"):
        np.testing.assert_array_equal(getattr(a, name), getattr(b, name), err_msg=name)


AEDAT4_DESCRIPTION = """<dv version="2.0"><node name="outInfo"><node name="0">
<attr key="typeIdentifier" type="string">EVTS</attr><node name="info">
<attr key="sizeX" type="int">{width}</attr><attr key="sizeY" type="int">{height}</attr>
</node></node></node></dv>"""


def aedat4_bytes(events: Events) -> bytes:
    """An uncompressed .aedat4 file, its two flatbuffers written by hand (tables with a leading vtable)."""
    text = AEDAT4_DESCRIPTION.format(height=events.size[0], width=events.size[1]).encode()
    # root offset, vtable (10 bytes + 2 padding), table {soffset, compression, position, description offset}, string
    vtable = struct.pack("<HHHHHxx", 10, 24, 4, 8, 16)
    table = struct.pack("<iiqIxxxx", len(vtable), 0, -1, 8)
    header = struct.pack("<I", 4 + len(vtable)) + vtable + table + struct.pack("<I", len(text)) + text + b"\0"
    columns = zip(events.t.tolist(), events.x.tolist(), events.y.tolist(), events.p.tolist())
    elements = b"".join(struct.pack("<qhhBxxx", *row) for row in columns)
    # size prefix, root offset, identifier, vtable, table {soffset, vector offset}, padding, count, structs (8-aligned)
    event_vtable = struct.pack("<HHHxx", 6, 8, 4)
    body = struct.pack("<I4s", 16, b"EVTS") + event_vtable + struct.pack("<iI", 8, 8)
    body += b"\0" * 4 + struct.pack("<I", len(events)) + elements
    packet = struct.pack("<I", len(body)) + body
    return b"#!AER-DAT4.0\r\n" + struct.pack("<I", len(header)) + header + struct.pack("<II", 0, len(packet)) + packet


def cifar_pixels(rows: int, seed: int = 0, classes: int = 10) -> tuple[np.ndarray, list[int]]:
    random = np.random.default_rng(seed)
    return random.integers(0, 256, (rows, 3072)).astype(np.uint8), [int(i % classes) for i in range(rows)]


def write_cifar10(folder: Path, rows: int = 20) -> None:
    """Both official layouts of CIFAR-10 with `rows` images a file."""
    names = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
    binary, python = folder / "cifar-10-batches-bin", folder / "cifar-10-batches-py"
    for sub in (binary, python):
        sub.mkdir(parents=True)
    for number, stem in enumerate([*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]):
        pixels, labels = cifar_pixels(rows, number)
        table = np.concatenate([np.array(labels, np.uint8)[:, None], pixels], axis=1)
        (binary / f"{stem}.bin").write_bytes(table.tobytes())
        (python / stem).write_bytes(pickle.dumps({b"labels": labels, b"data": pixels}, protocol=2))
    (binary / "batches.meta.txt").write_text("\n".join(names) + "\n\n")
    (python / "batches.meta").write_bytes(pickle.dumps({b"label_names": [n.encode() for n in names]}, protocol=2))
