"""Draws boxes with their classes and scores into images."""

from __future__ import annotations

import colorsys
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from steadyspike.data.errors import disk_errors

if TYPE_CHECKING:
    from PIL.Image import Image
    from PIL.ImageDraw import ImageDraw

    from steadyspike.detection.data.detection_set import DetectionBundle

Corners = tuple[float, float, float, float]
WHITE, DARK = (255, 255, 255), (32, 32, 32)
SMALLEST = 320  # pixels of a picture's shorter side; in smaller pictures labels would hide the objects
MOST_PIXELS = 2**24  # of an enlarged picture: a very narrow image would need gigabytes
_GAP = 4


def colour(category: int) -> tuple[int, int, int]:
    """Returns a strong colour for a category id; neighbouring ids have very different colours."""
    red, green, blue = colorsys.hsv_to_rgb((category * 0.618034) % 1.0, 0.85, 0.9)
    return round(255 * red), round(255 * green), round(255 * blue)


def draw_boxes(
    image: Image,
    rows: Iterable[Mapping[str, Any]],
    names: Mapping[int, str],
    truth: Iterable[Mapping[str, Any]] = (),
    smallest: int = SMALLEST,
) -> Image:
    """Draws an image with boxes in COCO's form (bbox, category_id and, if there is one, score).

    names: category id -> name
    truth: true boxes, drawn thin and white below the others
    smallest: a smaller image is enlarged by a whole factor until its shorter side has this many pixels
    """
    from PIL import ImageDraw

    factor = max(1, min(math.ceil(smallest / min(image.size)), math.isqrt(MOST_PIXELS // math.prod(image.size))))
    picture = image.convert("RGB").resize((image.width * factor, image.height * factor))
    pen = ImageDraw.Draw(picture)
    thick = max(1, round(min(picture.size) / 200))
    ordered = sorted(rows, key=lambda row: row.get("score", 1.0))
    for row in truth:
        pen.rectangle(_corners(row, factor), outline=WHITE, width=1)
    for row in ordered:
        pen.rectangle(_corners(row, factor), outline=colour(int(row["category_id"])), width=thick)
    for row in ordered:  # after all boxes, so that no box crosses a label
        text = names.get(int(row["category_id"]), str(row["category_id"]))
        text += f" {row['score']:.2f}" if "score" in row else ""
        _label(pen, picture.size, _corners(row, factor), text, colour(int(row["category_id"])))
    return picture


def _label(
    pen: ImageDraw, size: tuple[int, int], corners: Corners, text: str, ink: tuple[int, int, int]
) -> tuple[float, float]:
    """Writes a label at a box and inside the picture: above the box, or else below it, or else in its corner."""
    left, _, right, bottom = pen.textbbox((0, 0), text)
    tall, wide = bottom + 2, right - left + 4
    above, below = corners[1] - tall, corners[3] + 1
    y = above if above >= 0 else below if below + tall < size[1] else corners[1]
    x = max(0.0, min(corners[0], size[0] - wide - 1))
    pen.rectangle((x, y, x + wide, y + tall), fill=ink)
    pen.text((x + 2, y), text, fill=WHITE)
    return x, y


def _corners(row: Mapping[str, Any], factor: int) -> Corners:
    left, top, width, height = (factor * float(side) for side in row["bbox"])
    return left, top, left + width, top + height


def with_legend(picture: Image, names: Mapping[int, str]) -> Image:
    """The picture above a line that explains it: predicted boxes in the colours of their classes, true ones white."""
    from PIL import Image as pillow
    from PIL import ImageDraw

    entries = [(f"found: {name}" if index == 0 else name, colour(c)) for index, (c, name) in enumerate(names.items())]
    rows: list[list[tuple[str, tuple[int, int, int], int]]] = [[]]
    measure, x = ImageDraw.Draw(picture), _GAP
    for text, ink in [("true box", WHITE), *entries]:
        wide = 26 + math.ceil(measure.textlength(text))
        if rows[-1] and x + wide > picture.width:
            rows.append([])
            x = _GAP
        rows[-1].append((text, ink, x))
        x += wide
    line = 18
    sheet = pillow.new("RGB", (picture.width, picture.height + _GAP + line * len(rows)), DARK)
    sheet.paste(picture, (0, 0))
    pen = ImageDraw.Draw(sheet)
    for number, row in enumerate(rows):
        top = picture.height + _GAP + line * number
        for text, ink, left in row:
            pen.rectangle((left, top + 2, left + 12, top + 12), outline=ink, width=1 if ink == WHITE else 2)
            pen.text((left + 17, top + 1), text, fill=WHITE)
    return sheet


def contact_sheet(images: Sequence[Image], columns: int | None = None) -> Image:
    """Arranges images side by side in rows; all cells are as large as the largest image."""
    from PIL import Image as pillow

    if not images:
        return pillow.new("RGB", (1, 1))
    columns = columns or math.ceil(math.sqrt(len(images)))
    wide, tall = max(i.width for i in images) + _GAP, max(i.height for i in images) + _GAP
    sheet = pillow.new("RGB", (wide * min(columns, len(images)) - _GAP, tall * math.ceil(len(images) / columns) - _GAP))
    for index, image in enumerate(images):
        sheet.paste(image, (index % columns * wide, index // columns * tall))
    return sheet


def write_sheet(bundle: DetectionBundle, path: Path, part: str, per_class: int) -> Path:
    """The first ``2 * per_class`` images of a part with their true boxes, as a PNG file."""
    table, item = bundle.dataset.table, bundle.dataset.item
    drawn = [
        draw_boxes(item.image(i), table.coco([i])["annotations"], table.categories)
        for i in bundle.indices(part)[: 2 * per_class].tolist()
    ]
    with disk_errors(path):
        contact_sheet(drawn).save(path, "PNG")
    return path
