"""Clips on disk: one memory-mapped array for each combination of settings.

A cache entry is a folder `<name>-<key>`, in which the key is a hash of all settings that change the clips. It contains
`clips.npy`, and `meta.json` with the settings and the checksum of the whole array. A missing entry is made again, and
so is one that is damaged or of another shape.
"""

from __future__ import annotations

import errno
import json
import os
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steadyspike.data.cache import build_once, key_of
from steadyspike.data.errors import DataError
from steadyspike.data.events import read_bytes, regular_size
from steadyspike.disk.checksum import file_sha256

Clips = Iterable[tuple[int, NDArray[Any]]]
# The two types that `ClipWriter` writes: counts, or frames that were resized.
DTYPES = ("|u1", "<u2", "<u4", "<u8", "<f4")
# Large enough for the names of a million recordings and the settings.
MOST_META = 1 << 28


class ClipWriter:
    """Writes clips [N, *shape] to one .npy file.

    Integer counts start as uint8; the type becomes wider if a count does not fit.
    """

    def __init__(self, folder: Path, count: int, first: NDArray[Any]) -> None:
        self.folder, self.shape = folder, (count, *first.shape)
        self.counts = np.issubdtype(first.dtype, np.integer)
        self.array = self._open("clips.npy", np.dtype(np.uint8 if self.counts else first.dtype))

    def _open(self, name: str, dtype: np.dtype) -> NDArray[Any]:
        array = np.lib.format.open_memmap(self.folder / name, mode="w+", dtype=dtype, shape=self.shape)
        if hasattr(os, "posix_fallocate"):
            # Writing to a sparse memory map on a full disk kills the process; if the space is reserved first, an error
            # is raised instead.
            with open(self.folder / name, "r+b") as handle:
                try:
                    os.posix_fallocate(handle.fileno(), 0, (self.folder / name).stat().st_size)
                except OSError as error:
                    if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):  # not every disk can
                        raise
        return array

    def write(self, index: int, clip: NDArray[Any]) -> None:
        if self.counts and clip.max() > np.iinfo(self.array.dtype).max:
            self._widen(np.min_scalar_type(int(clip.max())))
        self.array[index] = clip

    def _widen(self, dtype: np.dtype) -> None:
        wider = self._open("wider.npy", dtype)
        wider[:] = self.array
        wider.flush()  # type: ignore[attr-defined]
        self.array = wider
        os.replace(self.folder / "wider.npy", self.folder / "clips.npy")

    def close(self) -> None:
        self.array.flush()  # type: ignore[attr-defined]


def cached_clips(
    cache_dir: Path,
    name: str,
    settings: dict[str, Any],
    count: int,
    make: Callable[[], Clips],
    ready: Iterable[Path] = (),
    shape: tuple[int, ...] | None = None,
) -> NDArray[Any]:
    """Returns the read-only memory map [count, T, 2, H, W] for `settings`.

    If it does not exist, `make()` is called; it yields (index, clip).

    `make` may yield in any order but must yield every index once.
    ready: caches that are only read
    shape: the shape of a clip, if it is known; an entry of another shape is made again
    """
    settings = {**settings, "count": count, "layout": 2}
    entry = f"{name}-{key_of(settings)}"

    def complete(folder: Path) -> bool:
        return _is_whole(folder, count, shape)

    def build(folder: Path) -> None:
        writer: ClipWriter | None = None
        missing = np.ones(count, bool)
        for index, clip in make():
            writer = writer or ClipWriter(folder, count, clip)
            writer.write(index, clip)
            missing[index] = False
        if writer is None or missing.any():
            raise DataError(f"{int(missing.sum())} of {count} clips of '{name}' were not made")
        writer.close()
        meta = {"settings": settings, "sha256": file_sha256(folder / "clips.npy")}
        (folder / "meta.json").write_text(json.dumps(meta, indent=1, sort_keys=True))

    complete_entry = next((folder / entry for folder in ready if complete(folder / entry)), None)
    target = complete_entry or build_once(cache_dir / entry, complete, build)
    clips: NDArray[Any] = np.load(target / "clips.npy", mmap_mode="r")
    return clips


def _is_whole(folder: Path, count: int, shape: tuple[int, ...] | None) -> bool:
    """Returns whether an entry is complete and undamaged: its checksum, shape, type and file size are as written."""
    try:
        meta = json.loads(read_bytes(folder / "meta.json", MOST_META))
        if not isinstance(meta, dict) or not isinstance(meta.get("sha256"), str):
            return False
        stored, dtype, size = _header(folder / "clips.npy")
        if dtype.str not in DTYPES or stored[:1] != (count,) or (shape is not None and stored[1:] != shape):
            return False
        if size != int(np.prod(stored, dtype=object)) * dtype.itemsize:
            return False
        return file_sha256(folder / "clips.npy") == meta["sha256"]
    except (OSError, ValueError, RecursionError):
        return False


def _header(file: Path) -> tuple[tuple[int, ...], np.dtype[Any], int]:
    """Returns the shape and type that an .npy file states, and the number of bytes after its header.

    Raises ValueError if the file is not an .npy file.
    """
    size = regular_size(file)
    with open(file, "rb") as handle, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # numpy's warning about a header that this library did not write
        try:
            version = np.lib.format.read_magic(handle)
            shape, fortran, dtype = np.lib.format.read_array_header_1_0(handle, max_header_size=1024)
        except Exception as error:  # numpy's parser raises several kinds of errors
            raise ValueError("an .npy header that cannot be read") from error
        if version != (1, 0) or fortran:
            raise ValueError("an .npy file of another form than the cache writes")
        return shape, dtype, size - handle.tell()
