"""Decompression with a limit: gzip, bzip2 and xz streams that stop before they exceed it."""

from __future__ import annotations

import bz2
import io
import lzma
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from steadyspike.data.errors import DataError

BLOCK = 1 << 16
# Published data is compressed by a factor below 20; gzip itself can reach 1,000 and bzip2 100,000.
ROOM, RATIO = 1 << 24, 50
# The largest dictionary that an xz file may use. `xz -9` needs 65 MiB to unpack, the format allows 4 GiB.
XZ_MEMORY = 1 << 27
# The largest number of compressed streams in one file. Tools write one stream, or one per 64 KiB; a million empty ones
# would only take time.
STREAMS = 4096
DAMAGE = (OSError, EOFError, zlib.error, lzma.LZMAError, ValueError)

_KINDS: dict[bytes, Callable[[], Any]] = {
    b"\x1f\x8b": lambda: _Zlib(),
    b"BZh": bz2.BZ2Decompressor,
    b"\xfd7zXZ\0": lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=XZ_MEMORY),
}


def budget(packed: int) -> int:
    """Returns the largest number of bytes that a compressed file of `packed` bytes may unpack to."""
    return ROOM + RATIO * packed


class _Zlib:
    """zlib's gzip decompressor with the same interface as those of bz2 and lzma."""

    def __init__(self) -> None:
        self._inner = zlib.decompressobj(wbits=31)

    def decompress(self, data: bytes, max_length: int) -> bytes:
        return self._inner.decompress(self._inner.unconsumed_tail + data, max_length)

    @property
    def needs_input(self) -> bool:
        return not self._inner.unconsumed_tail

    @property
    def eof(self) -> bool:
        return self._inner.eof

    @property
    def unused_data(self) -> bytes:
        return self._inner.unused_data


class Unpacked(io.RawIOBase):
    """Reads a plain, gzip, bzip2 or xz file as its unpacked bytes; raises DataError if these exceed `most`.

    source: opened for reading at its beginning. Several compressed streams in sequence count as one, as in the tools
    that write them. Zeros after the last one are ignored.
    """

    def __init__(self, source: IO[bytes], path: str | Path, most: int) -> None:
        self._source, self._path, self._left, self._most = source, path, most, most
        self._pending = source.read(BLOCK)
        self._open = next((kind for magic, kind in _KINDS.items() if self._pending.startswith(magic)), None)
        self._stream: Any = self._open() if self._open is not None else None
        self._streams = 1

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        """Returns at most `size` bytes, and fewer only at the end.

        A negative size reads everything within the limit.
        """
        parts, count = [], self._left + 1 if size < 0 else size
        while count > 0 and (part := self._some(count)):
            parts.append(part)
            count -= len(part)
        return b"".join(parts)

    def _some(self, size: int) -> bytes:
        block = self._plain(size) if self._stream is None else self._inflated(size)
        self._left -= len(block)
        if self._left < 0:
            raise DataError(
                f"unpacks to more than {self._most} bytes, which is more than its size accounts for", self._path
            )
        return block

    def _plain(self, size: int) -> bytes:
        if not self._pending:
            self._pending = self._source.read(BLOCK)
        block, self._pending = self._pending[:size], self._pending[size:]
        return block

    def _inflated(self, size: int) -> bytes:
        while not self._stream.eof or self._next_stream():
            data, self._pending = self._pending, b""
            # One byte beyond the limit is enough to detect the excess, so no more is ever unpacked.
            if block := self._stream.decompress(data, min(size, BLOCK, self._left + 1)):
                return bytes(block)
            if not self._stream.eof and self._stream.needs_input and not (data := self._source.read(BLOCK)):
                raise EOFError("the compressed data ends too early")
            self._pending = data if not self._stream.eof else b""
        return b""

    def _next_stream(self) -> bool:
        """Opens the compressed stream that follows the one that ended; returns False at the end of the file."""
        rest = (self._stream.unused_data + self._pending).lstrip(b"\0")
        while len(rest) < 6 and (more := self._source.read(BLOCK)):
            rest = (rest + more).lstrip(b"\0")
        if not rest:
            return False
        if (count := self._streams + 1) > STREAMS:
            raise DataError(f"holds more than {STREAMS} compressed streams", self._path)
        self._pending, self._stream, self._streams = rest, self._open(), count  # type: ignore[misc]
        return True


def read_unpacked(path: str | Path, most: int) -> bytes:
    """Returns the unpacked bytes of a plain or compressed file, at most `most`."""
    try:
        with open(path, "rb") as source:
            return Unpacked(source, path, most).read()
    except DAMAGE as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"is damaged or truncated ({error})", path) from error
