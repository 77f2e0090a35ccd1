"""Small pictures as PNG inside a page, written without a library."""

from __future__ import annotations

import base64
import struct
import zlib

import numpy as np
from numpy.typing import NDArray

LARGEST = 96  # the largest number of pixels of the longer side


def png(pixels: NDArray[np.uint8]) -> bytes:
    """Encodes RGB [H, W, 3] as a PNG file."""
    height, width = pixels.shape[:2]
    rows = np.zeros((height, 1 + 3 * width), np.uint8)  # every row begins with its filter: none
    rows[:, 1:] = np.ascontiguousarray(pixels, np.uint8).reshape(height, 3 * width)
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows.tobytes(), 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )


def data_url(pixels: NDArray[np.uint8]) -> str:
    """Returns the picture as a data URL, made smaller if it is larger than `LARGEST`."""
    return "data:image/png;base64," + base64.b64encode(png(smaller(pixels))).decode()


def smaller(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Averages square blocks, so that no side is longer than `LARGEST`."""
    factor = -(-max(pixels.shape[:2]) // LARGEST)
    if factor <= 1:
        return pixels
    height, width = (side // factor * factor for side in pixels.shape[:2])
    blocks = pixels[:height, :width].reshape(height // factor, factor, width // factor, factor, 3)
    return blocks.mean((1, 3)).round().astype(np.uint8)
