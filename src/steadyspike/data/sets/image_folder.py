"""Image folders: ImageNet (train/<wnid>, val/<wnid>) and any other tree of class folders, decoded in workers."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from steadyspike.data.augment import Augment
from steadyspike.data.data_folders import DataFolders
from steadyspike.data.dataset import DataSet
from steadyspike.data.errors import DataError, whole_number
from steadyspike.data.images import open_rgb, random_resized_crop, resize_and_centre, squeeze
from steadyspike.data.sets.class_folders import read_tree
from steadyspike.data.sources import ItemSource

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".ppm", ".pgm", ".tif", ".tiff", ".gif")
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
POLICIES = ("resized-crop", "crop")
INTERPOLATIONS = ("bilinear", "bicubic")
IMAGENETTE = {
    "n01440764": "tench", "n02102040": "English springer", "n02979186": "cassette player", "n03000684": "chain saw",
    "n03028079": "church", "n03394916": "French horn", "n03417042": "garbage truck", "n03425413": "gas pump",
    "n03445777": "golf ball", "n03888257": "parachute",
}  # fmt: skip
IMAGENETTE_FOLDERS = ("imagenette-96", "imagenette2-160", "imagenette2-320", "imagenette2", "imagenette")


@dataclass(frozen=True)
class Decoder:
    """item(index, train, seed) -> uint8 [3, S, S]. The paths are one bytes array, which worker processes share."""

    root: str
    paths: NDArray[np.bytes_]
    size: int
    resize: int
    policy: str
    least_area: float = 0.08
    interpolation: str = "bilinear"

    def __call__(self, index: int, train: bool, seed: int) -> torch.Tensor:
        image = open_rgb(os.path.join(self.root, os.fsdecode(self.paths[index])))
        if self.policy == "crop":
            return squeeze(image, self.size)
        if train:
            generator = torch.Generator().manual_seed(seed)
            return random_resized_crop(image, self.size, generator, self.least_area, self.interpolation)
        return resize_and_centre(image, self.resize, self.size, self.interpolation)


def load(
    folders: DataFolders,
    name: str,
    root: Path,
    size: int = 224,
    policy: str = "resized-crop",
    resize: int | None = None,
    least_area: float = 0.08,
    interpolation: str = "bilinear",
) -> DataSet:
    """Loads a folder of train/<class>/ and test/<class>/ or val/<class>/, or of class folders only (split at random).

    With train/, val/ and test/, val/ is the validation part; without test/, val/ is the test part (as for ImageNet).

    policy: how images become size x size:
        - "resized-crop" (ImageNet): RandomResizedCrop and flip for training; to evaluate, the short side is resized to
          `resize` (by default 8/7 of `size`), and the centre is cropped;
        - "crop" (for small images): resized to size x size; pad 4, random crop and flip for training
    least_area: for "resized-crop", the smallest share of an image's area that a training crop may have
    interpolation: for "resized-crop", "bilinear" or "bicubic"
    """
    whole_number("size", size)
    if resize is not None:
        whole_number("resize", resize, least=size)
    if policy not in POLICIES:
        raise DataError(f"policy must be {' or '.join(POLICIES)}, not '{policy}'")
    if not 0 < least_area <= 1:
        raise DataError(f"least_area must be above 0 and at most 1, not {least_area}")
    if interpolation not in INTERPOLATIONS:
        raise DataError(f"interpolation must be {' or '.join(INTERPOLATIONS)}, not '{interpolation}'")
    tree = read_tree(root, SUFFIXES, "image", without_test=name == "imagenet")  # ImageNet's test part has no labels
    resize = resize or round(size * 256 / 224)
    decoder = Decoder(
        str(root), np.array([os.fsencode(p) for p in tree.paths]), size, resize, policy, least_area, interpolation
    )
    return DataSet(
        name=name,
        source=ItemSource(len(tree.paths), decoder),
        population=tree.population(),
        classes=tree.classes,
        channels=3,
        size=(size, size),
        default_split=tree.default_split,
        mean=MEAN,
        std=STD,
        augment=Augment(padding=4, flip=True) if policy == "crop" else Augment(),
        settings={
            "image_policy": policy,
            "image_resize": resize,
            "image_least_area": least_area,
            "image_interpolation": interpolation,
        },
    )


def load_imagenette(
    folders: DataFolders,
    size: int = 96,
    policy: str = "resized-crop",
    resize: int | None = None,
    least_area: float = 0.35,
    interpolation: str = "bilinear",
) -> DataSet:
    """Imagenette: ten classes of ImageNet that are easy to distinguish, in train/<wnid>/ and val/<wnid>/."""
    if (root := find_imagenette(folders)) is None:
        raise DataError(f"has none of {', '.join(IMAGENETTE_FOLDERS)} with train/ and val/", folders.data_dir)
    dataset = load(folders, "imagenette", root, size, policy, resize, least_area, interpolation)
    if dataset.classes != tuple(IMAGENETTE):
        raise DataError(f"has other classes than Imagenette: {', '.join(dataset.classes[:5])}, ...", root)
    return replace(dataset, classes=tuple(IMAGENETTE.values()))


def find_imagenette(folders: DataFolders) -> Path | None:
    for name in IMAGENETTE_FOLDERS:
        if (folders.data_dir / name / "train").is_dir() and (folders.data_dir / name / "val").is_dir():
            return folders.data_dir / name
    return None
