"""Sealed files: each contains the sha256 of all of its own bytes, so that a changed file is detected before it is used.

The digest is in the file itself, after `MARK`, as 64 hexadecimal digits. It is the sha256 of the whole file with zeros
instead of these digits. A text or a header contains it (`seal`, `check_seal`); a large file that is written as a stream
has it at its end (`SealedWriter`, `check_trailer`).
"""

from __future__ import annotations

import hashlib
import os
from typing import BinaryIO

MARK = b"sha256-of-this-file:"
ZEROS = b"0" * 64
BLANK = (MARK + ZEROS).decode()  # put into a text that `seal` then completes
TRAILER = len(MARK) + len(ZEROS)
_BLOCK = 1 << 20


class SealError(ValueError):
    """A file was changed after it was written. The message continues a sentence that begins with the file's name."""


def seal(content: bytes) -> bytes:
    """Returns ``content``, which contains `BLANK` once, with the digest instead of it."""
    if content.count(MARK) != 1:
        raise ValueError(f"a file to be sealed must hold {BLANK!r} once")
    start = content.index(MARK) + len(MARK)
    digest = hashlib.sha256(content).hexdigest().encode()
    return content[:start] + digest + content[start + len(ZEROS) :]


def check_seal(content: bytes) -> None:
    """Raises SealError unless ``content`` is a result of `seal`."""
    if content.count(MARK) != 1:
        raise SealError("has no checksum, or several")
    start = content.index(MARK) + len(MARK)
    end = start + len(ZEROS)
    whole = hashlib.sha256(content[:start])
    whole.update(ZEROS)
    whole.update(memoryview(content)[end:])
    if content[start:end] != whole.hexdigest().encode():
        raise SealError("does not have the checksum it was written with")


class SealedWriter:
    """Writes to ``file`` and appends the digest at the end; call `finish` once, at the end."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._digest = file, hashlib.sha256()

    def write(self, content: bytes) -> int:
        self._digest.update(content)
        return self._file.write(content)

    def flush(self) -> None:
        self._file.flush()

    def finish(self) -> None:
        """Writes the trailer: `MARK` and the digest."""
        self._digest.update(MARK + ZEROS)
        self._file.write(MARK + self._digest.hexdigest().encode())


def check_trailer(file: BinaryIO) -> int:
    """Reads all of ``file`` and returns the length of its content without the trailer.

    Raises SealError if it was changed.
    """
    length = file.seek(0, os.SEEK_END) - TRAILER
    if length < 0:
        raise SealError("is truncated")
    digest, left = hashlib.sha256(), length
    file.seek(0)
    while left > 0 and (block := file.read(min(_BLOCK, left))):
        digest.update(block)
        left -= len(block)
    trailer = file.read(TRAILER)
    if not trailer.startswith(MARK):
        raise SealError("is truncated, or has no checksum at its end")
    digest.update(MARK + ZEROS)
    if left or trailer[len(MARK) :] != digest.hexdigest().encode():
        raise SealError("does not have the checksum it was written with")
    return length
