"""The folders in which data sets are searched, and those for files made from them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from steadyspike.data import archive
from steadyspike.data.cache import can_write, default_dir, writable_dir
from steadyspike.data.download import Remote, check_md5, fetch
from steadyspike.data.errors import DataError


@dataclass(frozen=True)
class DataFolders:
    """The folders of the data sets and of files made from them.

    data_dir: holds the data sets
    cache_dir: for clips and extracted archives
    download: whether downloads are allowed

    ready: read-only caches; complete entries in them are used
    """

    data_dir: Path
    cache_dir: Path
    download: bool = True
    ready: tuple[Path, ...] = ()

    @classmethod
    def of(cls, data_dir: str | Path | None, cache_dir: str | Path | None, download: bool) -> DataFolders:
        """Fills in the defaults: the user's cache folder for data, a folder inside data_dir for files made from it."""
        data = default_dir() / "data" if data_dir is None else Path(data_dir).expanduser()
        if data_dir is not None and not data.is_dir():
            raise DataError("is not a folder (data_dir)", data)
        if cache_dir is None:
            candidates = (data / ".steadyspike", default_dir())
            ready = tuple(folder for folder in candidates if folder.is_dir() and not can_write(folder))
            return cls(data, writable_dir(*candidates), download, ready)
        cache = Path(cache_dir).expanduser()
        if not cache.is_dir() and not can_write(cache):
            raise DataError("cannot be written to (cache_dir)", cache)
        return cls(data, cache, download)

    def within(self, name: str) -> DataFolders:
        """Returns the same folders, with a subfolder of the caches."""
        return replace(self, cache_dir=self.cache_dir / name, ready=tuple(folder / name for folder in self.ready))

    def where(self, inside: str, complete: Callable[[Path], bool] = Path.is_dir) -> Path:
        """Returns the path of `inside` in a read-only cache if it is complete there, otherwise in `cache_dir`."""
        complete_paths = (folder / inside for folder in self.ready if complete(folder / inside))
        return next(complete_paths, self.cache_dir / inside)

    def first(self, names: Iterable[str]) -> Path | None:
        """Returns the first of `names` that exists below data_dir."""
        return next((self.data_dir / name for name in names if (self.data_dir / name).exists()), None)

    def unpacked(self, remote: Remote, subfolders: Iterable[str] = ("",)) -> Path | None:
        """Returns the content of a published archive in data_dir (or a subfolder of it), checked and extracted."""
        target = self.where(f"extracted/{remote.name.split('.')[0]}")
        if target.is_dir():
            return target
        for subfolder in subfolders:
            if (path := self.data_dir / subfolder / remote.name).is_file():
                check_md5(path, remote)
                return archive.extract(path, target)
        return None

    def downloaded(self, remote: Remote, what: str) -> Path:
        """Returns the published file, downloaded to data_dir if needed.

        If downloads are not allowed, raises a DataError that explains what to do.
        """
        if not self.download:
            raise DataError(
                f"{what} was not found and downloading is off; put {remote.name} (from {remote.url}) there",
                self.data_dir,
            )
        try:
            return fetch(remote, writable_dir(self.data_dir, self.cache_dir / "downloads"))
        except DataError as error:  # the likely mistake is a wrong data folder, so the message names it
            told = DataError(
                f"{what} was not found in {self.data_dir}, and could not be downloaded: {error}. If you have it, name "
                "its folder with --data-dir (in Python data_dir=)"
            )
            told.path = error.path
            raise told from error
