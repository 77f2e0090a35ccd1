"""Image folders: ImageNet (train/<wnid>, val/<wnid>) and any other tree of class folders, decoded in workers."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from steadyspike.data.augment import Augment
from steadyspike.data.dataset import DataSet
from steadyspike.data.errors import DataError, whole_number
from steadyspike.data.images import open_rgb, random_resized_crop, resize_and_centre, squeeze
from steadyspike.data.place import Place
from steadyspike.data.sources import ItemSource
from steadyspike.data.splits import Population

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".ppm", ".pgm", ".tif", ".tiff", ".gif")
PARTS = ("train", "val", "validation", "test")
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
POLICIES = ("resized-crop", "crop")


@dataclass(frozen=True)
class Decoder:
    """item(index, train, seed) -> uint8 [3, S, S]. Paths are one bytes array, which worker processes share."""

    root: str
    paths: NDArray[np.bytes_]
    size: int
    resize: int
    policy: str

    def __call__(self, index: int, train: bool, seed: int) -> torch.Tensor:
        image = open_rgb(os.path.join(self.root, os.fsdecode(self.paths[index])))
        if self.policy == "crop":
            return squeeze(image, self.size)
        if train:
            return random_resized_crop(image, self.size, torch.Generator().manual_seed(seed))
        return resize_and_centre(image, self.resize, self.size)


def load(
    place: Place, name: str, root: Path, size: int = 224, policy: str = "resized-crop", resize: int | None = None
) -> DataSet:
    """A folder of train/<class>/ and test/<class>/ or val/<class>/, or of class folders only (to be split at random).

    With train/, val/ and test/, val/ is the validation part; without test/, val/ is the test part (as for ImageNet).

    policy: "resized-crop" (ImageNet: RandomResizedCrop and flip; short side to `resize`, by default 8/7 of `size`, and
    central crop to evaluate) or "crop" (resized to size x size; pad 4, random crop and flip, for small images).
    """
    whole_number("size", size)
    if resize is not None:
        whole_number("resize", resize, least=size)
    if policy not in POLICIES:
        raise DataError(f"policy must be {' or '.join(POLICIES)}, not '{policy}'.")
    parts = part_folders(root, name)
    classes = class_folders(parts[0][1])
    for _, folder in parts[1:]:
        if other := sorted(set(class_folders(folder)) ^ set(classes)):
            raise DataError(f"has other classes than {parts[0][1]}: {', '.join(other[:5])}.", folder)
    paths, labels, part_of = [], [], []
    seen: dict[str, Path] = {}
    for part, folder in parts:
        for label, class_name in enumerate(classes):
            files = image_files(folder / class_name, seen)
            paths += [os.path.relpath(os.path.join(folder, class_name, file), root) for file in files]
            labels += [label] * len(files)
            part_of += [part] * len(files)
    given = {part: np.array(part_of) == part for part, _ in parts}
    resize = resize or round(size * 256 / 224)
    decoder = Decoder(str(root), np.array([os.fsencode(p) for p in paths]), size, resize, policy)
    return DataSet(
        name=name,
        source=ItemSource(len(paths), decoder),
        population=Population(
            paths, np.array(labels, np.int64), given.get("test"), official_validation=given.get("validation")
        ),
        classes=tuple(classes),
        channels=3,
        size=(size, size),
        default_split="official" if "test" in given else "random:0",
        mean=MEAN,
        std=STD,
        augment=Augment(padding=4, flip=True) if policy == "crop" else Augment(),
        settings={"image_policy": policy, "image_resize": resize},
    )


def part_folders(root: Path, name: str) -> list[tuple[str, Path]]:
    """("train", "validation" or "test", its folder) for every part there is; ("all", root) where there are none."""
    found = {part: root / part for part in PARTS if (root / part).is_dir()}
    if name == "imagenet":
        found.pop("test", None)  # published without labels
    if not found:
        return [("all", root)]
    held_out = [part for part in found if part in ("val", "validation")]
    if "train" not in found or len(found) == 1 or len(held_out) > 1:
        raise DataError(
            f"has the parts {', '.join(found)}; expected are train with test, with val (or validation), or with both. "
            "A class folder cannot have the name of a part.",
            root,
        )
    parts = [("train", found["train"])]
    if held_out:
        parts.append(("validation" if "test" in found else "test", found[held_out[0]]))
    if "test" in found:
        parts.append(("test", found["test"]))
    return parts


def class_folders(folder: Path) -> list[str]:
    """Sorted names of the class folders; DataError for none or for images lying outside of them."""
    try:
        with os.scandir(folder) as entries:
            inside = [(e.name, e.is_dir()) for e in entries if not e.name.startswith(".")]
    except OSError as error:
        raise DataError(f"cannot be read ({error.strerror}).", folder) from error
    names = sorted(name for name, is_folder in inside if is_folder)
    if not names:
        flat = any(name.lower().endswith(SUFFIXES) for name, _ in inside)
        hint = "; its images must be sorted into one folder per class (ImageNet's val: with the devkit)" if flat else ""
        raise DataError(f"has no class folders{hint}.", folder)
    return names


def image_files(folder: Path, seen: dict[str, Path]) -> list[str]:
    """Sorted image names in a class folder and below; DataError when there are none.

    seen: real paths of all folders read so far; coming to one again (a link to a folder above, or from the test part
    into the training part) would count its images twice, so it is an error.
    """
    files = []
    for base, folders, names in os.walk(folder, followlinks=True, onerror=_unreadable):
        if (real := os.path.realpath(base)) in seen:
            raise DataError(f"is the same folder as {seen[real]}: its images would be counted twice.", base)
        seen[real] = Path(base)
        folders[:] = sorted(f for f in folders if not f.startswith("."))
        inside = os.path.relpath(base, folder)
        for name in names:
            if name.lower().endswith(SUFFIXES) and not name.startswith("."):
                files.append(name if inside == "." else os.path.join(inside, name))
    if not files:
        raise DataError("is a class folder without any image.", folder)
    return sorted(files)


def _unreadable(error: OSError) -> None:
    raise DataError(f"cannot be read ({error.strerror}).", error.filename) from error
