"""Safe extraction of tar and zip archives: only plain files, only inside the target folder, completely or not at all.

The size of an archive limits what it may unpack to and how many members it may have: see `budget`.
"""

from __future__ import annotations

import lzma
import shutil
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import IO

from steadyspike.data import tar_stream, zip_members
from steadyspike.data.cache import build_once
from steadyspike.data.decompress import Unpacked, budget
from steadyspike.data.errors import DataError, brief
from steadyspike.data.events import regular_size

# Every member of a published archive has far more than 512 compressed bytes. Extracting 400,000 empty members takes a
# minute.
MEMBERS, BYTES_PER_MEMBER = 1000, 512
# The largest allowed depth of nested folders. Without a limit every member could need a long new chain of them.
DEPTH = 16
_DAMAGE = (
    tarfile.TarError, zipfile.BadZipFile, OSError, EOFError, zlib.error, lzma.LZMAError, ValueError, KeyError,
    NotImplementedError, RuntimeError, OverflowError, IndexError, MemoryError,
)  # fmt: skip


def extract(archive: Path, target: Path, limit: int | None = None) -> Path:
    """Extract `archive` to the folder `target` unless that is there already.

    limit: the largest number of unpacked bytes; the default depends on the archive's own size (see `budget`).
    """
    return build_once(target, Path.is_dir, lambda folder: _extract_into(archive, folder, limit))


def _extract_into(archive: Path, folder: Path, limit: int | None) -> None:
    if not archive.is_file():
        raise DataError("is not a file", archive)
    if (packed := regular_size(archive)) == 0:
        raise DataError("is empty", archive)
    try:
        _write_members(
            archive, folder, budget(packed) if limit is None else limit, MEMBERS + packed // BYTES_PER_MEMBER
        )
    except DataError:
        raise
    except _DAMAGE as error:
        if isinstance(error, OSError) and error.errno is not None:  # the disk caused this error, not the archive
            raise DataError(f"cannot be extracted to {folder} ({error.strerror})", archive) from error
        raise DataError(f"is a damaged or truncated archive ({brief(error)})", archive) from error


def _write_members(archive: Path, folder: Path, limit: int, most: int) -> None:
    total = 0
    files: set[Path] = set()
    for count, (name, size, is_folder, open_member) in enumerate(_members(archive, limit), 1):
        if count > most:
            raise DataError(f"has more than {most} members, which is more than its size accounts for", archive)
        if is_folder:
            if PurePosixPath(name).parts:  # "." is the target folder itself; `tar c .` writes such a member
                safe_path(name, archive)
            continue
        total += size
        if total > limit:
            raise DataError(f"unpacks to more than {limit} bytes, which is more than its size accounts for", archive)
        destination = folder / safe_path(name, archive)
        if destination in files:
            raise DataError(f"has two members called '{name}'", archive)
        files.add(destination)
        destination.parent.mkdir(parents=True, exist_ok=True)
        with open_member() as source, open(destination, "wb") as sink:
            shutil.copyfileobj(source, sink, 1 << 20)
        if destination.stat().st_size != size:
            raise DataError(f"is truncated: member '{name}' is shorter than its header states", archive)
    if not files:
        raise DataError("is an archive without any file", archive)


def safe_path(name: str, archive: Path) -> Path:
    """Returns `name` as a relative path; raises DataError if the path would leave the target folder."""
    pure = PurePosixPath(name.replace("\\", "/"))
    if pure.is_absolute() or ".." in pure.parts or not pure.parts or ":" in pure.parts[0] or "\0" in name:
        raise DataError(f"member '{name}' would be written outside the target folder; nothing was extracted", archive)
    if len(pure.parts) > DEPTH:
        raise DataError(f"member '{name[:80]}' lies more than {DEPTH} folders deep", archive)
    return Path(*pure.parts)


Member = tuple[str, int, bool, Callable[[], IO[bytes]]]


def _members(archive: Path, limit: int) -> Iterator[Member]:
    """Yields (name, size, whether it is a folder, how to open it) for every member."""
    if zipfile.is_zipfile(archive):
        yield from zip_members.members(archive)
        return
    with open(archive, "rb") as source:
        # Headers and padding count too: at most a block and a half for every block of content, and one block for the
        # end.
        stream = Unpacked(source, archive, 2 * limit + (1 << 20))
        for info, content in tar_stream.members(stream, archive):
            yield info.name, info.size, info.isdir(), lambda c=content: c  # type: ignore[misc]
