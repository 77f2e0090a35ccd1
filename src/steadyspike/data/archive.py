"""Safe extraction of tar and zip archives: only plain files, only inside the target, whole or not at all."""

from __future__ import annotations

import lzma
import shutil
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import IO

from steadyspike.data.cache import build_once
from steadyspike.data.errors import DataError

# An archive may unpack to ROOM + RATIO times its size; published data stays far below, a bomb does not.
ROOM, RATIO = 1 << 30, 50
_DAMAGE = (
    tarfile.TarError, zipfile.BadZipFile, OSError, EOFError, zlib.error, lzma.LZMAError, ValueError, KeyError,
    NotImplementedError, RuntimeError, OverflowError, IndexError, MemoryError,
)  # fmt: skip


def extract(archive: Path, target: Path, limit: int | None = None) -> Path:
    """Extract `archive` to the folder `target` unless that is there already.

    limit: of the unpacked bytes; by default ROOM + RATIO times the archive's own size.
    """
    return build_once(target, Path.is_dir, lambda folder: _extract_into(archive, folder, limit))


def _extract_into(archive: Path, folder: Path, limit: int | None) -> None:
    total, files = 0, 0
    if limit is None:
        limit = ROOM + RATIO * (archive.stat().st_size if archive.is_file() else 0)
    try:
        for name, size, open_member in _members(archive):
            total, files = total + size, files + 1
            if total > limit:
                raise DataError(f"unpacks to more than {limit} bytes.", archive)
            destination = folder / safe_path(name, archive)
            destination.parent.mkdir(parents=True, exist_ok=True)
            with open_member() as source, open(destination, "wb") as sink:
                shutil.copyfileobj(source, sink, 1 << 20)
            if destination.stat().st_size != size:
                raise DataError(f"is truncated: member '{name}' is shorter than it says.", archive)
    except DataError:
        raise
    except _DAMAGE as error:
        if isinstance(error, OSError) and error.errno is not None:  # the disk's fault, not the archive's
            raise DataError(f"cannot be extracted to {folder} ({error.strerror}).", archive) from error
        raise DataError(
            f"is a damaged or truncated archive ({str(error) or type(error).__name__}).", archive
        ) from error
    if files == 0:
        raise DataError("is an archive without any file.", archive)


def safe_path(name: str, archive: Path) -> Path:
    """`name` as a relative path that stays below its folder; DataError for one that does not."""
    pure = PurePosixPath(name.replace("\\", "/"))
    if pure.is_absolute() or ".." in pure.parts or not pure.parts or ":" in pure.parts[0] or "\0" in name:
        raise DataError(f"member '{name}' would be written outside the target folder; nothing was extracted.", archive)
    return Path(*pure.parts)


Member = tuple[str, int, Callable[[], IO[bytes]]]


def _members(archive: Path) -> Iterator[Member]:
    if not archive.is_file():
        raise DataError("is not a file.", archive)
    if archive.stat().st_size == 0:
        raise DataError("is empty.", archive)
    if zipfile.is_zipfile(archive):
        yield from _zip_members(archive)
    else:
        yield from _tar_members(archive)


def _tar_members(archive: Path) -> Iterator[Member]:
    with tarfile.open(archive, "r:*") as tar:
        for member in tar:
            if member.isdir():
                if PurePosixPath(member.name).parts:  # "." is the target itself: `tar c .` writes it
                    safe_path(member.name, archive)
            elif member.isfile():
                yield member.name, member.size, lambda m=member: _opened(tar, m)  # type: ignore[misc]
            else:
                raise _special(member.name, archive)


def _special(name: str, archive: Path) -> DataError:
    return DataError(f"member '{name}' is a link or a device, which data has no need of.", archive)


def _opened(tar: tarfile.TarFile, member: tarfile.TarInfo) -> IO[bytes]:
    stream = tar.extractfile(member)
    if stream is None:
        raise tarfile.ReadError(f"member '{member.name}' has no content")
    return stream


def _zip_members(archive: Path) -> Iterator[Member]:
    with zipfile.ZipFile(archive) as bundle:
        for info in bundle.infolist():
            if stat.S_IFMT(info.external_attr >> 16) not in (0, stat.S_IFREG, stat.S_IFDIR):
                raise _special(info.filename, archive)
            if not info.is_dir():
                yield info.filename, info.file_size, lambda i=info: bundle.open(i)  # type: ignore[misc]
