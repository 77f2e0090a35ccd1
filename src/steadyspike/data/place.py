"""Where a data set is looked for and where things made from it are kept."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from steadyspike.data import archive
from steadyspike.data.cache import can_write, default_dir, writable_dir
from steadyspike.data.download import Remote, check_md5, fetch
from steadyspike.data.errors import DataError


@dataclass(frozen=True)
class Place:
    """data_dir: holds the data sets; cache_dir: for clips and extracted archives; download: allowed or not."""

    data_dir: Path
    cache_dir: Path
    download: bool = True

    @classmethod
    def of(cls, data_dir: str | Path | None, cache_dir: str | Path | None, download: bool) -> Place:
        """Defaults: the user's cache folder for data, a folder inside data_dir for what is made from it."""
        data = default_dir() / "data" if data_dir is None else Path(data_dir).expanduser()
        if data_dir is not None and not data.is_dir():
            raise DataError("is not a folder (data_dir).", data)
        if cache_dir is None:
            return cls(data, writable_dir(data / ".steadyspike", default_dir()), download)
        if not can_write(cache := Path(cache_dir).expanduser()):
            raise DataError("cannot be written to (cache_dir).", cache)
        return cls(data, cache, download)

    def first(self, names: Iterable[str]) -> Path | None:
        """The first of `names` that exists below data_dir."""
        return next((self.data_dir / name for name in names if (self.data_dir / name).exists()), None)

    def unpacked(self, remote: Remote, subfolders: Iterable[str] = ("",)) -> Path | None:
        """The content of a published archive that lies in data_dir (or a subfolder of it), checked and extracted."""
        target = self.cache_dir / "extracted" / remote.name.split(".")[0]
        if target.is_dir():
            return target
        for subfolder in subfolders:
            if (path := self.data_dir / subfolder / remote.name).is_file():
                check_md5(path, remote.md5)
                return archive.extract(path, target)
        return None

    def downloaded(self, remote: Remote, what: str) -> Path:
        """The published file, downloaded into data_dir; where that is not allowed, a DataError that says what to do."""
        if not self.download:
            raise DataError(
                f"{what} was not found and downloading is off; put {remote.name} (from {remote.url}) there.",
                self.data_dir,
            )
        return fetch(remote, writable_dir(self.data_dir, self.cache_dir / "downloads"))
