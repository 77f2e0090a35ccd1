"""The report of a detection run: mAP by class and by size of box, mAP of the classes by epoch, and pictures."""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from steadyspike.report.markup import Markup, data_table, escape, joined, table, tag
from steadyspike.report.rounding import rounded
from steadyspike.report.run_columns import number
from steadyspike.report.run_view import RunView
from steadyspike.train.recipe.kinds import BOXES

SIZES = {"small": "s", "medium": "m", "large": "l"}  # size of box -> the letter after COCO's AP and AR
LINES = 12  # the number of classes that have their own line
MOST_PICTURES = 6  # the number of pictures in one page, over all runs
_EXTENT = {"small": ": below 32 x 32 pixels", "large": ": above 96 x 96 pixels"}
_LARGEST = 24e6  # the most bytes of a picture file, and pixels of a picture
_QUALITY = 72


class Picture(NamedTuple):
    """url: the picture as a data URL"""

    epoch: int
    url: str


def class_curves(run: RunView) -> dict[str, Any]:
    """Returns class -> mAP@.5 by epoch as {x, y}: all classes together, then the first `LINES` of them."""
    path = run.root / "map.csv"
    curves: dict[str, dict[str, list[Any]]] = {}
    for row in run.boxes:
        value = number(row.get("AP50", ""), path)
        one = curves.setdefault(row.get("class", ""), {"x": [], "y": []})
        one["x"].append(int(number(row.get("epoch", ""), path) or 0))
        one["y"].append(rounded(value) if value is None or value >= 0 else None)
    return dict(list(curves.items())[: LINES + 1])


def cards(test: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Returns (title, value, note) of the cards next to the score at the top of the page."""
    sizes = ", ".join(f"{name} boxes {BOXES.number(test.get(f'AP{letter}'))}" for name, letter in SIZES.items())
    return [("test mAP@.5:.95", BOXES.number(test.get("AP")), f"COCO's AP; {sizes}")]


def section(runs: Sequence[RunView]) -> Markup:
    """Returns the whole part of the page for detection runs."""
    parts: list[object] = [tag("h2", "Boxes", id="boxes-title")]
    results = [run for run in runs if "AP50" in run.result.get("test", {})]
    if results:
        parts += [_classes_table(results), _sizes_table(results)]
    else:
        parts.append(tag("p", "The test part is evaluated when the run ends."))
    figure = tag("figcaption", "mAP@.5 of the classes on the selection part, by epoch")
    parts.append(tag("figure", figure, tag("div", class_="plot"), *map(_curves_table, runs), id="figure-boxes"))
    room = max(1, MOST_PICTURES // len(runs))
    for run in runs:
        parts += _pictures(run, room, f"{run.label}: " if len(runs) > 1 else "")
    return tag("section", *parts, id="boxes", aria_labelledby="boxes-title")


def _classes_table(runs: Sequence[RunView]) -> Markup:
    """Returns the test mAP by class, a pair of columns for every run."""
    classes = list(dict.fromkeys(name for run in runs for name in run.result["test"]["classes"]))
    head = ["class"]
    for run in runs:
        mark = f"{run.label}, " if len(runs) > 1 else ""
        head += [f"{mark}mAP@.5", f"{mark}mAP@.5:.95"]
    tests = [run.result["test"] for run in runs]
    rows = [["all", *_pairs(tests)]]
    rows += [[name, *_pairs([test["classes"].get(name, {}) for test in tests])] for name in classes]
    rows.append(["all, as YOLO code computes it", *_pairs(tests, "yolo_")])
    return table("Test mAP by class (COCO's definition, unless another is named)", head, rows)


def _pairs(rows: Sequence[dict[str, Any]], prefix: str = "") -> list[str]:
    return [BOXES.number(row.get(f"{prefix}{name}")) for row in rows for name in ("AP50", "AP")]


def _sizes_table(runs: Sequence[RunView]) -> Markup:
    head = ["boxes"]
    for run in runs:
        mark = f"{run.label}, " if len(runs) > 1 else ""
        head += [f"{mark}mAP@.5:.95", f"{mark}recall, 100 boxes an image"]
    rows = []
    for name, letter in {"all": "", **SIZES}.items():
        tests = [run.result["test"] for run in runs]
        pairs = [test.get(key) for test in tests for key in (f"AP{letter}", f"AR{letter or 100}")]
        rows.append([name + _EXTENT.get(name, ""), *map(BOXES.number, pairs)])
    return table("Test mAP and recall by size of box (COCO)", head, rows)


def _curves_table(run: RunView) -> Markup:
    rows = []
    for row in run.boxes:
        values = (BOXES.number(number(row.get(key, ""), run.root / "map.csv")) for key in ("AP50", "AP"))
        rows.append((row.get("epoch", ""), row.get("class", ""), *values))
    return data_table(f"mAP by class and epoch, {run.label}", ("epoch", "class", "mAP@.5", "mAP@.5:.95"), rows)


def _pictures(run: RunView, most: int, mark: str) -> list[Markup]:
    images = pictures(run.root, most)
    if not images:
        return []
    legend = "Predicted boxes in colour with class and score (0.25 or more), true boxes thin and white."
    parts = [
        tag("h3", f"{mark}Pictures: boxes predicted in images of the selection part"),
        tag("p", legend, class_="quiet"),
    ]
    for index, one in enumerate(reversed(images)):
        caption = f"{mark}after epoch {one.epoch}"
        description = f"images with the boxes that the network predicts, {caption}"
        image = Markup(f'<img class="boxes" src="{one.url}" alt="{escape(description)}">')
        if index == 0:
            parts.append(tag("figure", tag("figcaption", caption[0].upper() + caption[1:]), image))
        else:
            parts.append(tag("details", tag("summary", f"Earlier: {caption}"), image))
    return [joined(parts)]


def pictures(root: Path, most: int) -> list[Picture]:
    """Reads some of pictures/epoch-NNN.png, which are evenly spread and include the last.

    Unreadable ones are left out.
    """
    paths = {}
    for path in (root / "pictures").glob("epoch-*.png"):
        if (match := re.fullmatch(r"epoch-([0-9]{1,6})\.png", path.name)) is not None:
            paths[int(match[1])] = path
    epochs = sorted(paths)
    count = min(most, len(epochs))
    chosen = sorted({round((i + 1) * len(epochs) / count) - 1 for i in range(count)}) if count else []
    images = []
    for epoch in chosen:
        try:
            about = paths[epochs[epoch]].stat()
            url = _url(paths[epochs[epoch]], about.st_mtime_ns, about.st_size)
        except (OSError, ValueError, SyntaxError, ImportError):
            continue
        images.append(Picture(epochs[epoch], url))
    return images


@lru_cache(maxsize=32)
def _url(path: Path, changed: int, size: int) -> str:
    """Returns the picture as JPEG, which is a quarter of the PNG; cached for the next update of the same page."""
    from PIL import Image

    if size > _LARGEST:
        raise ValueError("too large")
    with Image.open(path, formats=("PNG",)) as picture:
        if picture.width * picture.height > _LARGEST:
            raise ValueError("too large")
        file = io.BytesIO()
        picture.convert("RGB").save(file, "JPEG", quality=_QUALITY)
    return "data:image/jpeg;base64," + base64.b64encode(file.getvalue()).decode()
