"""Draws boxes with their classes and scores into images."""

from __future__ import annotations

import colorsys
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from PIL.Image import Image

_GAP = 4


def colour(category: int) -> tuple[int, int, int]:
    """A strong colour for a category id; neighbours differ much."""
    red, green, blue = colorsys.hsv_to_rgb((category * 0.618034) % 1.0, 0.85, 0.9)
    return round(255 * red), round(255 * green), round(255 * blue)


def draw_boxes(
    image: Image,
    rows: Iterable[Mapping[str, Any]],
    names: Mapping[int, str],
    truth: Iterable[Mapping[str, Any]] = (),
) -> Image:
    """A copy of an image with boxes in COCO's form (bbox, category_id and, where there is one, score).

    names: category id -> name. truth: true boxes, drawn thin and white below the others.
    """
    from PIL import ImageDraw

    picture = image.convert("RGB")
    pen = ImageDraw.Draw(picture)
    thick = max(1, round(min(picture.size) / 200))
    for row in truth:
        pen.rectangle(_corners(row), outline=(255, 255, 255), width=1)
    for row in sorted(rows, key=lambda row: row.get("score", 1.0)):
        ink, corners = colour(int(row["category_id"])), _corners(row)
        pen.rectangle(corners, outline=ink, width=thick)
        text = names.get(int(row["category_id"]), str(row["category_id"]))
        text += f" {row['score']:.2f}" if "score" in row else ""
        left, _, right, bottom = pen.textbbox((0, 0), text)
        tall, wide = bottom + 2, right - left + 4
        place = corners[0], corners[1] - tall if corners[1] >= tall else corners[1]
        pen.rectangle((place[0], place[1], place[0] + wide, place[1] + tall), fill=ink)
        pen.text((place[0] + 2, place[1]), text, fill=(255, 255, 255))
    return picture


def _corners(row: Mapping[str, Any]) -> tuple[float, float, float, float]:
    left, top, width, height = (float(side) for side in row["bbox"])
    return left, top, left + width, top + height


def contact_sheet(images: Sequence[Image], columns: int | None = None) -> Image:
    """Images side by side in rows; all cells are as large as the largest image."""
    from PIL import Image as pillow

    if not images:
        return pillow.new("RGB", (1, 1))
    columns = columns or math.ceil(math.sqrt(len(images)))
    wide, tall = max(i.width for i in images) + _GAP, max(i.height for i in images) + _GAP
    sheet = pillow.new("RGB", (wide * min(columns, len(images)) - _GAP, tall * math.ceil(len(images) / columns) - _GAP))
    for place, image in enumerate(images):
        sheet.paste(image, (place % columns * wide, place // columns * tall))
    return sheet
