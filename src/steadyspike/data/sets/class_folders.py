"""Folders of class folders: train/<class>/ with test/<class>/, val/<class>/ or both, or <class>/ only.

Image folders and folders of event recordings are read by the same rules.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from steadyspike.data.errors import DataError
from steadyspike.data.splits import Population

PARTS = ("train", "val", "validation", "test")


@dataclass(frozen=True)
class ClassTree:
    """The files of a tree of class folders.

    paths: relative to the root
    labels: index into ``classes``
    parts: "train", "validation" or "test", or "all" if there are no folders for parts

    All three have one entry per file.
    """

    paths: list[str]
    labels: list[int]
    parts: list[str]
    classes: tuple[str, ...]

    @property
    def default_split(self) -> str:
        return "official" if "test" in self.parts else "random:0"

    def population(self) -> Population:
        """Returns the files as samples that a split divides."""
        given = {part: np.array(self.parts) == part for part in set(self.parts)}
        labels = np.array(self.labels, np.int64)
        return Population(self.paths, labels, given.get("test"), official_validation=given.get("validation"))


def read_tree(root: Path, suffixes: tuple[str, ...], what: str, without_test: bool = False) -> ClassTree:
    """Lists all files below ``root`` whose names end in ``suffixes``; ``what`` is their name in messages.

    With train/, val/ and test/, val/ is the validation part; without test/, val/ is the test part (as for ImageNet).
    """
    parts = part_folders(root, without_test)
    classes = class_folders(parts[0][1], suffixes, what)
    for _, folder in parts[1:]:
        if other := sorted(set(class_folders(folder, suffixes, what)) ^ set(classes)):
            raise DataError(f"has other classes than {parts[0][1]}: {', '.join(other[:5])}", folder)
    tree = ClassTree([], [], [], tuple(classes))
    seen: dict[str, Path] = {}
    for part, folder in parts:
        for label, class_name in enumerate(classes):
            files = class_files(folder / class_name, suffixes, what, seen)
            tree.paths.extend(os.path.relpath(os.path.join(folder, class_name, file), root) for file in files)
            tree.labels.extend([label] * len(files))
            tree.parts.extend([part] * len(files))
    return tree


def part_folders(root: Path, without_test: bool = False) -> list[tuple[str, Path]]:
    """Returns ("train", "validation" or "test", its folder) for every existing part.

    Returns ("all", root) if there are none.
    """
    folders = {part: root / part for part in PARTS if (root / part).is_dir()}
    if without_test:
        folders.pop("test", None)
    if not folders:
        return [("all", root)]
    held_out = [part for part in folders if part in ("val", "validation")]
    if "train" not in folders or len(folders) == 1 or len(held_out) > 1:
        raise DataError(
            f"has the parts {', '.join(folders)}; expected are train with test, with val (or validation), or both. "
            "A class folder cannot have the name of a part",
            root,
        )
    parts = [("train", folders["train"])]
    if held_out:
        parts.append(("validation" if "test" in folders else "test", folders[held_out[0]]))
    if "test" in folders:
        parts.append(("test", folders["test"]))
    return parts


def class_folders(folder: Path, suffixes: tuple[str, ...], what: str) -> list[str]:
    """Returns the sorted names of the class folders; raises DataError if there are none."""
    try:
        with os.scandir(folder) as entries:
            inside = [(e.name, e.is_dir()) for e in entries if not e.name.startswith(".")]
    except OSError as error:
        raise DataError(f"cannot be read ({error.strerror})", folder) from error
    names = sorted(name for name, is_folder in inside if is_folder)
    if not names:
        flat = any(name.lower().endswith(suffixes) for name, _ in inside)
        more = " (ImageNet's val: with the devkit)" if what == "image" else ""
        hint = f"; its {what}s must be sorted into one folder per class{more}" if flat else ""
        raise DataError(f"has no class folders{hint}", folder)
    return names


def class_files(folder: Path, suffixes: tuple[str, ...], what: str, seen: dict[str, Path]) -> list[str]:
    """Returns the sorted names of the files in a class folder and below; raises DataError if there are none.

    seen: the real paths of all folders read so far. Reading one of them again (through a link to a folder above, or
    from the test part into the training part) would count its files twice, so it is an error.
    """
    files = []
    for base, folders, names in os.walk(folder, followlinks=True, onerror=_unreadable):
        if (real := os.path.realpath(base)) in seen:
            raise DataError(f"is the same folder as {seen[real]}: its {what}s would be counted twice", base)
        seen[real] = Path(base)
        folders[:] = sorted(f for f in folders if not f.startswith("."))
        inside = os.path.relpath(base, folder)
        for name in names:
            if name.lower().endswith(suffixes) and not name.startswith("."):
                files.append(name if inside == "." else os.path.join(inside, name))
    if not files:
        raise DataError(f"is a class folder without any {what}", folder)
    return sorted(files)


def _unreadable(error: OSError) -> None:
    raise DataError(f"cannot be read ({error.strerror})", error.filename) from error
