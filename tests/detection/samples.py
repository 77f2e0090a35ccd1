"""Small detection sets on disk in the three forms."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import numpy as np
from PIL import Image

SIZES = [(40, 60), (60, 40), (50, 50), (33, 64)]  # (height, width)


def picture(path: Path, size: tuple[int, int], seed: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(seed)
    Image.fromarray(random.integers(0, 255, (*size, 3), np.uint8)).save(path)


def coco_content(first: int = 0) -> dict:
    """Four images; categories with gaps; a crowd, an image without boxes, a box half outside, one without a size."""
    images = [
        {"id": 10 * (first + i) + 7, "file_name": f"{first + i:03d}.jpg", "height": h, "width": w}
        for i, (h, w) in enumerate(SIZES)
    ]
    boxes = [
        (0, 1, [5, 5, 20, 10], 0), (0, 90, [30, 10, 15, 20], 0), (0, 3, [0, 0, 60, 40], 1),
        (1, 3, [-10, 20, 30, 30], 0), (2, 90, [10, 10, 0, 0], 0), (2, 1, [10, 10, 25, 25], 0),
    ]  # fmt: skip
    annotations = [
        {"id": first * 100 + n, "image_id": images[i]["id"], "category_id": c, "bbox": box, "area": box[2] * box[3] / 2,
         "iscrowd": crowd}
        for n, (i, c, box, crowd) in enumerate(boxes, 1)
    ]  # fmt: skip
    names = {1: "cat", 3: "dog", 90: "owl"}
    return {
        "images": images,
        "annotations": annotations,
        "categories": [{"id": c, "name": name} for c, name in names.items()],
    }


def coco_folder(root: Path, parts: tuple[str, ...] = ("train", "val", "test"), images: str = "images") -> Path:
    for k, part in enumerate(parts):
        content = coco_content(10 * k)
        folder = root / (images or part)
        for n, image in enumerate(content["images"]):
            picture(folder / image["file_name"], (image["height"], image["width"]), 10 * k + n)
        path = root / "annotations" / f"instances_{part}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content))
    return root


def zipped(root: Path) -> Path:
    """The folder of COCO 2017 as its three published archives."""
    out = root / "zipped"
    out.mkdir()
    with zipfile.ZipFile(out / "annotations_trainval2017.zip", "w") as bundle:
        for path in (root / "annotations").glob("*.json"):
            bundle.write(path, f"annotations/{path.name}")
    for name in ("train2017", "val2017"):
        with zipfile.ZipFile(out / f"{name}.zip", "w") as bundle:
            for path in (root / name).iterdir():
                bundle.write(path, f"{name}/{path.name}")
    return out


def voc_folder(root: Path) -> Path:
    (root / "ImageSets" / "Main").mkdir(parents=True)
    (root / "Annotations").mkdir()
    stems = []
    for n, (height, width) in enumerate(SIZES):
        stem = f"{n:06d}"
        stems.append(stem)
        picture(root / "JPEGImages" / f"{stem}.jpg", (height, width), n)
        boxes = "" if n == 1 else (
            "<object><name>dog</name><difficult>0</difficult><part><name>head</name><bndbox><xmin>3</xmin>"
            "<ymin>3</ymin><xmax>4</xmax><ymax>4</ymax></bndbox></part><bndbox><xmin>1</xmin><ymin>2</ymin>"
            "<xmax>20</xmax><ymax>11</ymax></bndbox></object><object><name>cat</name><difficult>1</difficult>"
            "<bndbox><xmin>5</xmin><ymin>5</ymin><xmax>9</xmax><ymax>9</ymax></bndbox></object>"
        )  # fmt: skip
        size = f"<size><width>{width}</width><height>{height}</height><depth>3</depth></size>"
        (root / "Annotations" / f"{stem}.xml").write_text(f"<annotation>{size}{boxes}</annotation>")
    (root / "ImageSets" / "Main" / "trainval.txt").write_text("\n".join(stems[:3]) + "\n")
    (root / "ImageSets" / "Main" / "test.txt").write_text(stems[3] + "\n")
    return root


def yolo_folder(root: Path, names: str = "classes.txt") -> Path:
    for part, sizes in (("train", SIZES[:3]), ("val", SIZES[3:])):
        for n, size in enumerate(sizes):
            picture(root / "images" / part / f"{n}.png", size, n)
            if n != 1:  # an image without a label file
                path = root / "labels" / part / f"{n}.txt"
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text("0 0.5 0.5 0.25 0.5\n1 0.1 0.1 0.2 0.2\n")
    if names == "classes.txt":
        (root / names).write_text("cat\ndog\n")
    else:
        (root / "data.yaml").write_text(names)
    return root
