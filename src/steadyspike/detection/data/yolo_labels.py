"""Folders of images with YOLO text labels: one line `class x y width height` per box, all as shares of the image."""

from __future__ import annotations

import math
import os
from pathlib import Path

from steadyspike.data.errors import DataError, brief
from steadyspike.data.images import FORMATS, check_size, orientation
from steadyspike.detection.data.box_table import Box, Picture

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".ppm", ".tif", ".tiff")
_EDGE = 1e-3  # labels are rounded, so a box may exceed its image by this much


def _lines(path: Path) -> list[str]:
    """Reads the lines of a text file in UTF-8, with or without the byte-order mark of Windows' editors."""
    try:
        return path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"cannot be read as text in UTF-8 ({brief(error)})", path) from error


def read_labels(path: Path, size: tuple[int, int]) -> list[Box]:
    """Reads the boxes of one label file for an image of (height, width).

    A missing file means an image without boxes.
    """
    if not path.exists():
        return []
    height, width = size
    boxes = []
    for number, line in enumerate(_lines(path), 1):
        if not line.strip():
            continue
        try:
            label, *numbers = line.split()
            x, y, w, h = (float(value) for value in numbers)
            category = int(label)
        except ValueError:
            raise DataError(f"line {number} is not 'class x y width height': {line[:60]!r}", path) from None
        if not all(math.isfinite(v) and -_EDGE <= v <= 1 + _EDGE for v in (x, y, w, h)):
            raise DataError(f"line {number} has a position outside 0..1: {line[:60]!r}; shares are expected", path)
        box = ((x - w / 2) * width, (y - h / 2) * height, w * width, h * height)
        boxes.append(Box(box, category, box[2] * box[3]))
    return boxes


def image_size(path: Path) -> tuple[int, int]:
    """Reads (height, width) from an image's header, after rotation by its EXIF orientation."""
    from PIL import Image

    try:
        with Image.open(path, formats=FORMATS) as image:
            check_size(image, path)
            sides = image.height, image.width
            return sides if orientation(image) < 5 else sides[::-1]
    except DataError:
        raise
    except Exception as error:  # Pillow's decoders raise many kinds of errors on damaged files
        raise DataError(f"is not an image that can be decoded ({brief(error)})", path) from error


def class_names(root: Path) -> list[str]:
    """Reads the lines of classes.txt, or `names` of a data.yaml written as a list or with numbers."""
    for name in ("classes.txt", "obj.names"):
        if (root / name).is_file():
            return [line.strip() for line in _lines(root / name) if line.strip()]
    for name in ("data.yaml", "data.yml", "dataset.yaml"):
        if (root / name).is_file():
            return _yaml_names(root / name)
    raise DataError("has no classes.txt (one class name per line) and no data.yaml with names", root)


def _yaml_names(path: Path) -> list[str]:
    """Reads `names: [a, b]`, or `names:` followed by lines `- a` or `0: a`, without a YAML library."""
    lines = [line.split("#")[0].rstrip() for line in _lines(path)]
    for number, line in enumerate(lines):
        if not line.startswith("names:"):
            continue
        rest = line.removeprefix("names:").strip()
        if rest.startswith("[") and rest.endswith("]"):
            return [_plain(item) for item in rest[1:-1].split(",") if item.strip()]
        names = []
        for entry in lines[number + 1 :]:
            text = entry.strip()
            if text and not entry.startswith((" ", "-")):
                break
            if text.startswith("- "):
                names.append(_plain(text[2:]))
            elif text.partition(":")[0].isdigit() and int(text.partition(":")[0]) == len(names):
                names.append(_plain(text.partition(":")[2]))
            elif text:
                raise DataError(f"line '{text[:60]}' is not a class name", path)
        return names
    raise DataError("has no names: (a list of class names)", path)


def _plain(text: str) -> str:
    return text.strip().strip("'\"")


def read_yolo(root: Path, parts: list[tuple[str, str]]) -> tuple[list[Picture], dict[int, str]]:
    """Reads the pictures of root/images/NAME (or root/NAME/images) with their labels, for (NAME, part) of ``parts``."""
    names = class_names(root)
    pictures: list[Picture] = []
    for name, part in parts:
        images, labels = _folders(root, name)
        for base, folders, files in os.walk(images):
            folders.sort()
            for file in sorted(f for f in files if f.lower().endswith(SUFFIXES) and not f.startswith(".")):
                path = Path(base) / file
                inside = path.relative_to(images)
                size = image_size(path)
                label_file = (labels / inside).with_suffix(".txt")
                boxes = read_labels(label_file, size)
                for box in boxes:
                    if not 0 <= box.category < len(names):
                        raise DataError(f"has class {box.category}; there are {len(names)}", label_file)
                pictures.append(Picture(len(pictures) + 1, str(path.relative_to(root)), size, part, boxes))
    return pictures, dict(enumerate(names))


def _folders(root: Path, name: str) -> tuple[Path, Path]:
    if (root / "images" / name).is_dir():
        return root / "images" / name, root / "labels" / name
    return root / name / "images", root / name / "labels"
