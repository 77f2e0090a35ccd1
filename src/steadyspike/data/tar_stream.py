"""Tar archives read from front to back: only plain files and folders, and only headers of the size that a path needs.

Python's own `tarfile` reads the long-name and pax headers of an archive into memory, whatever size they claim. Here the
claimed size is checked first. Headers are 512-byte blocks, parsed (with their checksum) by `TarInfo.frombuf`.
"""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator
from pathlib import Path

from steadyspike.data.decompress import Unpacked
from steadyspike.data.errors import DataError

BLOCK = 512
# Room for a path of 4,096 bytes, and many times the extended attributes that macOS adds.
LONGEST_HEADER = 1 << 16


class Content(io.RawIOBase):
    """The bytes of one member: `size` bytes of the stream, then the end."""

    def __init__(self, stream: Unpacked, size: int) -> None:
        self._stream, self.left = stream, size

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        count = self.left if size < 0 else min(size, self.left)
        block = self._stream.read(count)
        if len(block) < count:
            raise EOFError("it ends inside a member")
        self.left -= len(block)
        return block

    def skip(self) -> None:
        while self.left:
            self.read(1 << 16)


def members(stream: Unpacked, path: Path) -> Iterator[tuple[tarfile.TarInfo, Content]]:
    """Yields every file and folder with its content, which must be read before the next one is requested.

    Raises DataError for links, devices and sparse files, and for a header that is larger than a path needs.
    """
    name: str | None = None
    size: int | None = None
    while (block := stream.read(BLOCK)) and any(block):
        info = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
        if info.size < 0:
            raise tarfile.ReadError("a member has a negative size")
        if info.type in (tarfile.GNUTYPE_LONGNAME, tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE):
            raw = _header(stream, info.size, path)
            if info.type == tarfile.GNUTYPE_LONGNAME:
                name = raw.rstrip(b"\0").decode("utf-8", "surrogateescape")
            elif info.type != tarfile.XGLTYPE:  # in practice a global header contains no names and sizes
                records = _pax(raw)
                name, size = records.get("path", name), int(records["size"]) if "size" in records else size
            continue
        if not (info.isdir() or info.isreg()) or info.issparse() or info.type == tarfile.GNUTYPE_SPARSE:
            raise DataError(f"member '{info.name}' is a link or a device, which data has no need of", path)
        info.name = (info.name if name is None else name).rstrip("/")
        info.size = info.size if size is None else size
        if info.isdir():
            info.size = 0
        content = Content(stream, info.size)
        yield info, content
        content.skip()
        _padding(stream, info.size)
        name = size = None


def _header(stream: Unpacked, size: int, path: Path) -> bytes:
    if size > LONGEST_HEADER:
        raise DataError(f"has a header of {size} bytes; {LONGEST_HEADER} are more than a file name needs", path)
    raw = Content(stream, size).read()
    _padding(stream, size)
    return raw


def _padding(stream: Unpacked, size: int) -> None:
    Content(stream, -size % BLOCK).read()


def _pax(raw: bytes) -> dict[str, str]:
    """Returns the records `LENGTH KEY=VALUE\\n` of a pax header; raises ValueError if a length is wrong."""
    records: dict[str, str] = {}
    at = 0
    while at < len(raw) and raw[at : at + 1] != b"\0":
        space = raw.index(b" ", at, at + 20)
        length = int(raw[at:space])
        record = raw[space + 1 : at + length]
        if length < space - at + 4 or at + length > len(raw) or not record.endswith(b"\n") or b"=" not in record:
            raise tarfile.ReadError("a pax header has a record with a wrong length")
        key, _, value = record[:-1].decode("utf-8", "surrogateescape").partition("=")
        if key.startswith("GNU.sparse"):
            raise tarfile.ReadError("it holds a sparse file, which data has no need of")
        records[key] = value
        at += length
    return records
