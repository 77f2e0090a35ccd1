"""The image files of a detection set: a folder, the published zip archive, or arrays in memory."""

from __future__ import annotations

import os
import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from steadyspike.data.errors import DataError, brief
from steadyspike.data.images import open_rgb
from steadyspike.data.zip_members import members

if TYPE_CHECKING:
    from PIL.Image import Image

MOST_BYTES = 1 << 28  # the size of the largest packed image


class ImageStore(Protocol):
    """Opens images by name, as RGB."""

    def open(self, name: str) -> Image: ...

    def missing(self, names: list[str]) -> list[str]:
        """Returns those of ``names`` that are missing."""
        ...


@dataclass(frozen=True)
class FolderStore:
    """Image files below a folder."""

    root: Path

    def open(self, name: str) -> Image:
        return open_rgb(self.root / name, upright=True)

    def missing(self, names: list[str]) -> list[str]:
        there: dict[str, set[str]] = {}
        lost = []
        for name in names:
            folder, base = os.path.split(name)
            if folder not in there:
                subfolder = self.root / folder
                there[folder] = set(os.listdir(subfolder)) if subfolder.is_dir() else set()
            if base not in there[folder]:
                lost.append(name)
        return lost


@dataclass(frozen=True)
class ZipStore:
    """Image files of a zip archive, below ``folder`` inside it; every process opens the archive once."""

    path: Path
    folder: str = ""
    _open: dict[int, zipfile.ZipFile] = field(default_factory=dict, compare=False, repr=False)

    def _member(self, name: str) -> str:
        return f"{self.folder}/{name}" if self.folder else name

    def open(self, name: str) -> Image:
        if (process := os.getpid()) not in self._open:
            self._open.clear()  # the parent process opened it before the fork
            self._open[process] = zipfile.ZipFile(self.path)
        bundle = self._open[process]
        try:
            info = bundle.getinfo(self._member(name))
            if info.file_size > MOST_BYTES:
                raise DataError(f"member '{name}' is larger than {MOST_BYTES} bytes", self.path)
            content = bundle.read(info)
        except KeyError:
            raise DataError(f"has no member '{self._member(name)}'", self.path) from None
        except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, OSError) as error:
            raise DataError(f"member '{name}' cannot be read ({brief(error)})", self.path) from error
        return open_rgb(self.path / name, content, upright=True)

    def missing(self, names: list[str]) -> list[str]:
        there = {name for name, _, folder, _ in members(self.path) if not folder}
        return [name for name in names if self._member(name) not in there]

    def __getstate__(self) -> dict[str, object]:
        return {"path": self.path, "folder": self.folder, "_open": {}}

    def __setstate__(self, state: dict[str, object]) -> None:
        for name, value in state.items():
            object.__setattr__(self, name, value)


@dataclass(frozen=True)
class ArrayStore:
    """Images [N, H, W, 3] in memory; the name of an image is its number."""

    images: NDArray[np.uint8]

    def open(self, name: str) -> Image:
        from PIL import Image as pillow

        return pillow.fromarray(self.images[int(name)])

    def missing(self, names: list[str]) -> list[str]:
        return [name for name in names if int(name) >= len(self.images)]
