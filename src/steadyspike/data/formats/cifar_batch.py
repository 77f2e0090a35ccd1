"""Official CIFAR files, binary records or python pickles, as uint8 images [N, 3, 32, 32] and labels [N]."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from steadyspike.data.errors import DataError, brief_list
from steadyspike.data.events import read_bytes, regular_size
from steadyspike.data.formats import plain_pickle

PIXELS = 3 * 32 * 32
Images = tuple[NDArray[np.uint8], NDArray[np.int64]]


def read_binary(path: str | Path, label_bytes: int, classes: int, rows: int) -> Images:
    """Reads records of `label_bytes` labels and 3072 pixels.

    The last label is the class; CIFAR-100 puts the coarse label first.
    """
    record = label_bytes + PIXELS
    size = regular_size(path)
    if size not in (0, rows * record):
        raise DataError(f"has {size} bytes; {rows} records of {record} bytes ({rows * record}) are expected", path)
    table = np.frombuffer(read_bytes(path, rows * record), np.uint8).reshape(rows, record)
    return _checked(table[:, label_bytes:], table[:, label_bytes - 1].astype(np.int64), classes, path)


def read_pickle(path: str | Path, label_key: str, classes: int, rows: int) -> Images:
    """Reads a python batch: 'data' is uint8 [rows, 3072], and `label_key` holds a list of labels."""
    # Python 3 writes a byte of the images as up to two bytes; labels and file names take less than 256 bytes per row.
    content = plain_pickle.load(read_bytes(path, rows * (2 * PIXELS + 256) + (1 << 16)), path)
    data, labels = content.get("data"), content.get(label_key)
    if not isinstance(data, np.ndarray) or not isinstance(labels, list):
        raise DataError(f"has no array 'data' with a list '{label_key}' (it has {brief_list(content)})", path)
    if data.shape != (rows, PIXELS) or len(labels) != rows:
        raise DataError(f"has data {data.shape} and {len(labels)} labels; ({rows}, {PIXELS}) is expected", path)
    if not all(type(label) is int for label in labels):
        raise DataError(f"has labels under '{label_key}' that are not integers", path)
    if not all(0 <= label < classes for label in labels):
        raise DataError(f"has a label outside 0..{classes - 1}", path)
    return _checked(data, np.array(labels, np.int64), classes, path)


def _checked(pixels: NDArray[np.uint8], labels: NDArray[np.int64], classes: int, path: str | Path) -> Images:
    if len(labels) and int(labels.max()) >= classes:
        raise DataError(f"has label {int(labels.max())}; there are {classes} classes", path)
    return pixels.reshape(-1, 3, 32, 32), labels
