"""Zip archives: only their plain files, and only directories whose size is plausible for the archive."""

from __future__ import annotations

import io
import stat
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from steadyspike.data.errors import DataError

# Published archives use less than a hundredth of their size for the directory. `zipfile` reads it in one piece.
ROOM, SHARE = 1 << 18, 8
METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)


class _Limited(io.BufferedReader):
    """A file that cannot be read in pieces of more than `most` bytes."""

    def __init__(self, path: Path, most: int) -> None:
        super().__init__(io.FileIO(path))
        self._path, self._most = path, most

    def read(self, size: int | None = -1, /) -> bytes:
        count = self._path.stat().st_size - self.tell() if size is None or size < 0 else size
        if count > self._most:
            raise DataError(
                f"has a directory of {count} bytes; {self._most} are more than an archive of its size needs",
                self._path,
            )
        return super().read(size)


def members(path: Path) -> Iterator[tuple[str, int, bool, Callable[[], IO[bytes]]]]:
    """Yields (name, size, whether it is a folder, how to open it) for every member.

    Raises DataError for links and devices.
    """
    with _Limited(path, ROOM + path.stat().st_size // SHARE) as source, zipfile.ZipFile(source) as bundle:
        for info in bundle.infolist():
            if stat.S_IFMT(info.external_attr >> 16) not in (0, stat.S_IFREG, stat.S_IFDIR):
                raise DataError(f"member '{info.filename}' is a link or a device, which data has no need of", path)
            if info.compress_type not in METHODS:
                raise DataError(f"member '{info.filename}' is compressed in a way that published data is not", path)
            yield info.filename, info.file_size, info.is_dir(), lambda i=info: bundle.open(i)  # type: ignore[misc]
