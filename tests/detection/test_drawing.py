"""Pictures of boxes: small images are enlarged, labels stay inside and do not hide what they name."""

from __future__ import annotations

import math

import numpy as np
import pytest
from PIL import Image, ImageDraw

from steadyspike.detection import draw_boxes
from steadyspike.detection.drawing import SMALLEST, _label, contact_sheet, with_legend

NAMES = {1: "triangle", 2: "a circle with a long name"}


def row(category, *bbox, score=0.87):
    return {"bbox": list(bbox), "category_id": category, "score": score}


def test_a_small_image_is_enlarged_by_a_whole_factor_and_a_large_one_is_not():
    assert draw_boxes(Image.new("RGB", (96, 128)), [], NAMES).size == (96 * 4, 128 * 4)
    assert draw_boxes(Image.new("RGB", (640, 400)), [], NAMES).size == (640, 400)
    assert draw_boxes(Image.new("RGB", (96, 96)), [], NAMES, smallest=1).size == (96, 96)
    assert min(draw_boxes(Image.new("RGB", (7, 300)), [], NAMES).size) >= SMALLEST
    assert math.prod(draw_boxes(Image.new("RGB", (1, 400)), [], NAMES).size) <= 2**24


@pytest.mark.parametrize("bbox", [(40, 40, 20, 20), (0, 0, 24, 24), (70, 70, 26, 26), (0, 66, 30, 30)])
def test_a_label_does_not_cover_its_object(bbox):
    picture = np.array(draw_boxes(Image.new("RGB", (96, 96)), [row(1, *bbox)], NAMES))
    left, top, width, height = (4 * side for side in bbox)
    inside = picture[top + 4 : top + height - 4, left + 4 : left + width - 4]
    assert not inside.any() and picture.any()


@pytest.mark.parametrize("corners", [(300.0, 0.0, 380.0, 60.0), (350.0, 340.0, 384.0, 384.0), (0.0, 0.0, 384.0, 384.0)])
def test_a_label_stays_inside_the_picture(corners):
    picture = Image.new("RGB", (384, 384))
    pen = ImageDraw.Draw(picture)
    x, y = _label(pen, picture.size, corners, NAMES[2] + " 0.50", (200, 0, 0))
    assert x >= 0 and x + pen.textlength(NAMES[2] + " 0.50") < 384 and 0 <= y < 384 - 10


def test_a_legend_explains_true_and_found_boxes():
    sheet = contact_sheet([draw_boxes(Image.new("RGB", (96, 96)), [row(1, 10, 10, 30, 30)], NAMES)] * 2)
    explained = with_legend(sheet, NAMES)
    assert explained.width == sheet.width and explained.height > sheet.height + 10
    strip = np.array(explained)[sheet.height :].reshape(-1, 3)
    assert (strip == 255).all(1).any() and len(np.unique(strip, axis=0)) > 3
    many = with_legend(sheet, {c: f"class number {c}" for c in range(40)})
    assert many.height > explained.height  # as many lines as it needs
