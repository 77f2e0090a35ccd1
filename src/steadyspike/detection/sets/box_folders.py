"""The user's own detection sets: folders with annotations of COCO, Pascal VOC or YOLO."""

from __future__ import annotations

from pathlib import Path

from steadyspike.data.data_folders import DataFolders
from steadyspike.data.errors import DataError
from steadyspike.detection.data.box_table import TEST, TRAIN, VALIDATION, box_table
from steadyspike.detection.data.detection_set import DetectionSet, detection_set
from steadyspike.detection.data.image_store import FolderStore, ImageStore
from steadyspike.detection.data.voc_xml import read_voc
from steadyspike.detection.data.yolo_labels import read_yolo
from steadyspike.detection.sets.coco import coco_folder

FORMS = ("coco", "voc", "yolo")


def form_of(root: Path) -> str:
    """Returns the form of a folder, judged by its content."""
    if any((root / "annotations").glob("instances_*.json")) if (root / "annotations").is_dir() else False:
        return "coco"
    if (root / "ImageSets" / "Main").is_dir():
        return "voc"
    if any((root / name).is_dir() for name in ("labels", "train/labels")):
        return "yolo"
    raise DataError(
        "is not a detection set: expected are annotations/instances_train.json (COCO), ImageSets/Main with Annotations "
        "and JPEGImages (Pascal VOC), or images/train with labels/train (YOLO)",
        root,
    )


def load_folder(folders: DataFolders, size: int | tuple[int, int] = 640, form: str | None = None) -> DetectionSet:
    """Loads data_dir itself.

    form: coco, voc or yolo; by default it is recognised by the folder's content
    """
    root, kind = folders.data_dir, form or form_of(folders.data_dir)
    if kind not in FORMS:
        raise DataError(f"form must be one of {', '.join(FORMS)}, not {form!r}")
    if kind == "coco":
        return coco_folder("box-folder", root, size)
    return (_voc if kind == "voc" else _yolo)("box-folder", root, size)


def _voc(name: str, root: Path, size: int | tuple[int, int]) -> DetectionSet:
    main = root / "ImageSets" / "Main"
    there = [n for n in ("train", "val", "trainval", "test") if (main / f"{n}.txt").is_file()]
    if {"train", "val", "test"} <= set(there):
        lists = [("train", TRAIN), ("val", VALIDATION), ("test", TEST)]
    elif {"trainval", "test"} <= set(there):
        lists = [("trainval", TRAIN), ("test", TEST)]
    elif {"train", "val"} <= set(there):
        lists = [("train", TRAIN), ("val", TEST)]
    else:
        raise DataError(f"has the lists {', '.join(there) or 'none'}; train with val or test is expected", main)
    pictures, categories = read_voc(root, lists)
    store: ImageStore = FolderStore(root / "JPEGImages")
    table = box_table(pictures, categories, str(root))
    return detection_set(name, table, {part: store for _, part in lists}, size)


def _yolo(name: str, root: Path, size: int | tuple[int, int]) -> DetectionSet:
    there = [
        n for n in ("train", "val", "valid", "test") if (root / "images" / n).is_dir() or (root / n / "images").is_dir()
    ]
    held = [n for n in there if n in ("val", "valid")]
    if "train" not in there or len(there) < 2 or len(held) > 1:
        raise DataError(f"has the parts {', '.join(there) or 'none'}; images/train with val or test is expected", root)
    kind = {"train": TRAIN, "test": TEST, **dict.fromkeys(held, VALIDATION if "test" in there else TEST)}
    pictures, categories = read_yolo(root, [(n, kind[n]) for n in there])
    store: ImageStore = FolderStore(root)
    return detection_set(name, box_table(pictures, categories, str(root)), {kind[n]: store for n in there}, size)


def find_voc(folders: DataFolders) -> Path | None:
    """Returns the folder VOC2007 or VOC2012 of a VOCdevkit."""
    for name in ("VOCdevkit/VOC2007", "VOCdevkit/VOC2012", "VOC2007", "VOC2012"):
        if (folders.data_dir / name / "ImageSets" / "Main").is_dir():
            return folders.data_dir / name
    return None


def load_voc(folders: DataFolders, size: int | tuple[int, int] = 320) -> DetectionSet:
    """Loads Pascal VOC 2007 (or 2012, whose test part was not published: val is the test part)."""
    if (root := find_voc(folders)) is None:
        raise DataError("Pascal VOC was not found: VOCdevkit/VOC2007 or VOC2012 is expected", folders.data_dir)
    return _voc("voc", root, size)
