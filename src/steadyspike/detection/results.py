"""Truth and detections in COCO's form: read from a file or a loaded value, checked, and converted to arrays."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steadyspike.data.errors import DataError, brief

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Truth:
    """images: ids
    categories: id -> name, in the order of ids

    All other fields have one entry per true box.

    boxes: (left, top, width, height)
    area: COCO's own, of the object's outline
    crowd: many objects in one box
    """

    images: frozenset[int]
    categories: dict[int, str]
    image: Ints
    category: Ints
    boxes: Floats
    area: Floats
    crowd: NDArray[np.bool_]


@dataclass(frozen=True)
class Detected:
    """One entry per detection.

    boxes: (left, top, width, height)
    """

    image: Ints
    category: Ints
    boxes: Floats
    scores: Floats


TruthLike = str | Path | Mapping[str, Any] | Truth
ResultsLike = str | Path | Sequence[Mapping[str, Any]] | Detected


def _loaded(value: Any, what: str) -> tuple[Any, Path | None]:
    if not isinstance(value, (str, Path)):
        return value, None
    path = Path(value)
    try:
        return json.loads(path.read_bytes()), path
    except OSError as error:
        raise DataError(f"cannot be read ({error.strerror})", path) from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"is not JSON with {what} ({brief(error)})", path) from error


def as_truth(value: Any) -> Truth:
    """Reads COCO annotations as arrays; DataError names what is wrong with them."""
    content, path = _loaded(value, "annotations of COCO")
    if isinstance(content, Truth):
        return content
    try:
        images = [_id(image["id"], "image") for image in content["images"]]
        categories = {_id(c["id"], "category"): str(c.get("name", c["id"])) for c in content["categories"]}
        boxes = list(content["annotations"])
        truth = Truth(
            frozenset(images),
            dict(sorted(categories.items())),
            np.array([_id(a["image_id"], "image") for a in boxes], np.int64),
            np.array([_id(a["category_id"], "category") for a in boxes], np.int64),
            _boxes([a["bbox"] for a in boxes]),
            np.array([a["area"] if "area" in a else a["bbox"][2] * a["bbox"][3] for a in boxes], np.float64),
            np.array([bool(a.get("iscrowd", 0)) for a in boxes], bool),
        )
    except (TypeError, KeyError, ValueError, AttributeError, IndexError) as error:
        raise DataError(f"{_there(path)}the truth is not in COCO's form ({_why(error)})") from error
    if len(truth.images) != len(images):
        raise DataError(f"{_there(path)}an image id belongs to more than one image")
    for ids, listed, what in ((truth.image, truth.images, "image"), (truth.category, truth.categories, "category")):
        if strange := set(ids.tolist()) - set(listed):
            raise DataError(f"{_there(path)}an annotation has {what} {min(strange)}, which is not listed")
    return truth


def as_results(value: Any) -> Detected:
    """Reads a list of detections as arrays; DataError names what is wrong with it. An empty list is valid."""
    content, path = _loaded(value, "detections")
    if isinstance(content, Detected):
        return content
    if not isinstance(content, Sequence) or isinstance(content, (str, bytes, Mapping)):
        raise DataError(f"{_there(path)}results are a list of detections, not {type(content).__name__}")
    try:
        detected = Detected(
            np.array([_id(r["image_id"], "image") for r in content], np.int64),
            np.array([_id(r["category_id"], "category") for r in content], np.int64),
            _boxes([r["bbox"] for r in content]),
            np.array([float(r["score"]) for r in content], np.float64),
        )
    except (TypeError, KeyError, ValueError, AttributeError) as error:
        raise DataError(f"{_there(path)}a detection is not in COCO's form ({_why(error)})") from error
    if not np.isfinite(detected.scores).all():
        raise DataError(f"{_there(path)}detection {int(np.argmin(np.isfinite(detected.scores)))} has no finite score")
    return detected


def _boxes(boxes: list[Any]) -> Floats:
    array = np.array(boxes, np.float64).reshape(-1, 4) if boxes else np.empty((0, 4))
    if len(array) != len(boxes):
        raise ValueError("a bbox is not four numbers")
    bad = ~np.isfinite(array).all(1) | (array[:, 2:] < 0).any(1)
    if bad.any():
        raise ValueError(f"the bbox {boxes[int(bad.argmax())]} has a position that is not finite or a negative size")
    return array


def _id(value: Any, what: str) -> int:
    if isinstance(value, bool) or int(value) != value:
        raise ValueError(f"the {what} id {value!r} is not a whole number")
    return int(value)


def _there(path: Path | None) -> str:
    return "" if path is None else f"{path}: "


def _why(error: Exception) -> str:
    return f"{error.args[0]!r} is missing" if isinstance(error, KeyError) else brief(error)
