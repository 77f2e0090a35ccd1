"""Pascal VOC folders: Annotations/*.xml, JPEGImages/ and the lists of ImageSets/Main/."""

from __future__ import annotations

import os
import xml.parsers.expat
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from steadyspike.data.errors import DataError, brief
from steadyspike.detection.data.box_table import Box, Picture
from steadyspike.detection.data.yolo_labels import SUFFIXES

CLASSES = (
    "aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow", "diningtable", "dog",
    "horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train", "tvmonitor",
)  # fmt: skip
MOST_BYTES = 1 << 22


class _Tree:
    """Reads the texts of an XML file by path; entities and document types, which data does not need, raise an error."""

    def __init__(self) -> None:
        self.objects: list[dict[str, str]] = []
        self.fields: dict[str, str] = {}
        self._path: list[str] = []
        self._text: list[str] = []

    def parse(self, content: bytes) -> None:
        parser = xml.parsers.expat.ParserCreate()
        parser.StartElementHandler = self._start
        parser.EndElementHandler = self._end
        parser.CharacterDataHandler = self._text.append
        parser.StartDoctypeDeclHandler = _refuse
        parser.Parse(content, True)

    def _start(self, name: str, attributes: Any) -> None:
        self._path.append(name)
        self._text.clear()
        if self._path == ["annotation", "object"]:
            self.objects.append({})

    def _end(self, name: str) -> None:
        text, path = "".join(self._text).strip(), self._path[1:]
        if path[:1] == ["object"] and len(path) > 1 and "part" not in path:
            self.objects[-1]["/".join(path[1:])] = text
        elif path:
            self.fields["/".join(path)] = text
        self._path.pop()
        self._text.clear()


def _refuse(*_: Any) -> None:
    raise ValueError("it declares a document type")


def read_xml(path: Path) -> tuple[tuple[int, int], list[tuple[str, Box]]]:
    """Reads (height, width), and (class name, box) of every object of one annotation file.

    VOC counts pixels from 1 and includes the last one: a box is (xmin - 1, ymin - 1) to (xmax, ymax). An object marked
    "difficult" is treated as a crowd: it need not be detected and is not learnt.
    """
    try:
        if path.stat().st_size > MOST_BYTES:
            raise DataError(f"has {path.stat().st_size} bytes, more than an annotation needs", path)
        tree = _Tree()
        tree.parse(path.read_bytes())
        size = int(tree.fields["size/height"]), int(tree.fields["size/width"])
        boxes = []
        for item in tree.objects:
            left, top, right, bottom = (float(item[f"bndbox/{side}"]) for side in ("xmin", "ymin", "xmax", "ymax"))
            width, height = right - left + 1, bottom - top + 1
            box = (left - 1, top - 1, max(width, 0.0), max(height, 0.0))
            boxes.append((item["name"], Box(box, 0, box[2] * box[3], item.get("difficult", "0") == "1")))
        return size, boxes
    except DataError:
        raise
    except OSError as error:
        raise DataError(f"cannot be read ({error.strerror})", path) from error
    except (xml.parsers.expat.ExpatError, KeyError, ValueError, RecursionError) as error:
        why = f"{error.args[0]!r} is missing" if isinstance(error, KeyError) else brief(error)
        raise DataError(f"is not an annotation of Pascal VOC ({why})", path) from error


def _stem(line: str) -> str:
    """Returns the image's name in a line of a list.

    Lists of one class have -1, 0 or 1 after it, and names may have spaces.
    """
    name, _, flag = line.rpartition(" ")
    return name.strip() if name and flag in ("-1", "0", "1") else line


def _image_names(folder: Path) -> dict[str, str]:
    """Returns stem -> name of the image files of a folder: .jpg as in VOC itself, or else another image format."""
    names = sorted(os.listdir(folder), reverse=True) if folder.is_dir() else []
    by_stem = {Path(name).stem: name for name in names if Path(name).suffix.lower() in SUFFIXES}
    return {**by_stem, **{Path(name).stem: name for name in names if name.endswith(".jpg")}}


def read_voc(root: Path, lists: Iterable[tuple[str, str]]) -> tuple[list[Picture], dict[int, str]]:
    """Reads the pictures of a folder like VOC2007, for lists of ImageSets/Main and their parts: ("trainval", "train").

    Classes are VOC's twenty if all names are among them; otherwise they are the names that occur, in alphabetical
    order.
    """
    read: list[tuple[str, str, tuple[int, int], list[tuple[str, Box]]]] = []
    for name, part in lists:
        listing = root / "ImageSets" / "Main" / f"{name}.txt"
        try:
            lines = listing.read_text(encoding="utf-8-sig").splitlines()
            stems = [_stem(line.strip()) for line in lines if line.strip()]
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(f"cannot be read ({brief(error)})", listing) from error
        for stem in stems:
            if "/" in stem or stem.startswith("."):
                raise DataError(f"lists '{stem[:80]}', which is not the name of an image", listing)
            size, objects = read_xml(root / "Annotations" / f"{stem}.xml")
            read.append((stem, part, size, objects))
    images = _image_names(root / "JPEGImages")
    names = {name for *_, objects in read for name, _ in objects}
    classes = CLASSES if names <= set(CLASSES) else tuple(sorted(names))
    number = {name: i for i, name in enumerate(classes, 1)}
    pictures = []
    for i, (stem, part, size, objects) in enumerate(read, 1):
        boxes = [box._replace(category=number[name]) for name, box in objects]
        pictures.append(Picture(i, images.get(stem, f"{stem}.jpg"), size, part, boxes))
    return pictures, {i: name for name, i in number.items()}
