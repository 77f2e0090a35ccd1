"""Detection sets with COCO's annotation files: COCO 2017, BCCD, and any folder of that form."""

from __future__ import annotations

from pathlib import Path

from steadyspike.data.data_folders import DataFolders
from steadyspike.data.errors import DataError
from steadyspike.detection.data.box_table import TEST, TRAIN, VALIDATION, Picture, box_table
from steadyspike.detection.data.coco_json import read_coco
from steadyspike.detection.data.detection_set import DetectionSet, detection_set
from steadyspike.detection.data.image_store import FolderStore, ImageStore, ZipStore

_ZIP = "annotations_trainval2017.zip"
_KINDS = {"train": TRAIN, "val": VALIDATION, "valid": VALIDATION, "validation": VALIDATION, "test": TEST}


def find_coco(folders: DataFolders) -> Path | None:
    """Returns the folder with COCO 2017: annotations and images, unpacked or as the published zip archives."""
    for name in ("coco", "COCO", "coco2017", "."):
        root = folders.data_dir / name
        if (root / "annotations" / "instances_train2017.json").is_file() or (root / _ZIP).is_file():
            return root
    return None


def load_coco(folders: DataFolders, size: int | tuple[int, int] = 640) -> DetectionSet:
    """Loads COCO 2017: train2017 is the training part, val2017 the test part (COCO published no boxes of its own)."""
    if (root := find_coco(folders)) is None:
        raise DataError(
            "COCO 2017 was not found: coco/annotations/instances_{train,val}2017.json with coco/train2017 and "
            f"coco/val2017 are expected, or {_ZIP}, train2017.zip and val2017.zip",
            folders.data_dir,
        )
    pictures: list[Picture] = []
    categories: dict[int, str] = {}
    stores: dict[str, ImageStore] = {}
    for year, part in (("train2017", TRAIN), ("val2017", TEST)):
        plain, member = root / "annotations" / f"instances_{year}.json", f"annotations/instances_{year}.json"
        of_part, names = read_coco(plain, part) if plain.is_file() else read_coco(root / _ZIP, part, member)
        pictures, categories = pictures + of_part, {**categories, **names}
        stores[part] = _images(root, [year])
    return detection_set("coco", box_table(pictures, categories, "COCO"), stores, size)


def _images(root: Path, names: list[str]) -> ImageStore:
    for name in names:
        if (root / name).is_dir():
            return FolderStore(root / name)
        if (root / f"{name}.zip").is_file():
            return ZipStore(root / f"{name}.zip", name)
    raise DataError(f"has no folder and no zip archive of images; searched for {', '.join(names)}", root)


def coco_folder(name: str, root: Path, size: int | tuple[int, int]) -> DetectionSet:
    """Loads a folder with annotations/instances_PART.json (PART: train, val, test, with or without a year after it).

    The images of a part are in a folder (or zip archive) with the name of the part, or in images/. With val and test,
    val is the validation part; without test, val is the test part.
    """
    files = sorted((root / "annotations").glob("instances_*.json")) if (root / "annotations").is_dir() else []
    parts = {file: _KINDS.get(file.stem.removeprefix("instances_").rstrip("0123456789")) for file in files}
    if TRAIN not in parts.values() or len(set(parts.values())) != len(parts) or None in parts.values():
        raise DataError(
            "has no annotations/instances_train.json, or two files of one part; expected are instances_train, "
            "instances_val and instances_test (.json), or the first and one of the others",
            root,
        )
    only_validation = TEST not in parts.values()
    pictures: list[Picture] = []
    categories: dict[int, str] = {}
    stores: dict[str, ImageStore] = {}
    for file, kind in parts.items():
        assert kind is not None
        part = TEST if kind == VALIDATION and only_validation else kind
        of_part, names = read_coco(file, part)
        if categories and names != categories:
            raise DataError("has other categories than the other annotation files", file)
        pictures, categories = pictures + of_part, names
        stores[part] = _images(root, [file.stem.removeprefix("instances_"), kind, "images"])
    return detection_set(name, box_table(pictures, categories, str(root)), stores, size)


def find_bccd(folders: DataFolders) -> Path | None:
    for name in ("bccd", "BCCD"):
        if (folders.data_dir / name / "annotations" / "instances_train.json").is_file():
            return folders.data_dir / name
    return None


def load_bccd(folders: DataFolders, size: int | tuple[int, int] = (256, 320)) -> DetectionSet:
    """Loads blood cells: 205, 87 and 72 images of 320 x 240 with red cells, white cells and platelets."""
    if (root := find_bccd(folders)) is None:
        raise DataError(
            "BCCD was not found: bccd/annotations/instances_{train,val,test}.json are expected", folders.data_dir
        )
    return coco_folder("bccd", root, size)
