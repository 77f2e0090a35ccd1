"""COCO's annotation files (instances_*.json), plain or inside the published zip."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

from steadyspike.data.errors import DataError, brief
from steadyspike.detection.data.box_table import Box, Picture

MOST_BYTES = 1 << 30  # instances_train2017.json has 470 MB


def read_json(path: Path, member: str | None = None) -> Any:
    """Reads a JSON file, or a member of a zip archive."""
    try:
        if member is None:
            if path.stat().st_size > MOST_BYTES:
                raise DataError(
                    f"has {path.stat().st_size} bytes; annotations of more than {MOST_BYTES} are not read", path
                )
            return json.loads(path.read_bytes())
        with zipfile.ZipFile(path) as bundle:
            if bundle.getinfo(member).file_size > MOST_BYTES:
                raise DataError(f"member '{member}' is larger than {MOST_BYTES} bytes", path)
            return json.loads(bundle.read(member))
    except DataError:
        raise
    except KeyError:
        raise DataError(f"has no member '{member}'", path) from None
    except OSError as error:
        raise DataError(f"cannot be read ({error.strerror or error})", path) from error
    except (ValueError, RecursionError, zipfile.BadZipFile, NotImplementedError) as error:
        raise DataError(f"is not JSON that can be read ({brief(error)})", path) from error


def read_coco(path: Path, part: str, member: str | None = None) -> tuple[list[Picture], dict[int, str]]:
    """Reads the pictures of one annotation file, all of one part, and its categories (id -> name).

    Ids may have gaps. An image without annotations is an image without boxes. Two images or annotations with the same
    id, and an annotation of an unknown image, raise an error.
    """
    content = read_json(path, member)
    try:
        categories = {_whole(c["id"]): str(c["name"]) for c in content["categories"]}
        if len(categories) != len(content["categories"]):
            raise DataError("two categories have one id", path)
        boxes: dict[int, list[Box]] = {_whole(image["id"]): [] for image in content["images"]}
        if len(boxes) != len(content["images"]):
            raise DataError("two images have one id", path)
        ids: set[int] = set()
        for a in content["annotations"]:
            if (number := _whole(a["id"])) in ids:
                raise DataError(f"two annotations have the id {number}", path)
            ids.add(number)
            if (image := _whole(a["image_id"])) not in boxes:
                raise DataError(f"annotation {number} is of image {image}, which is not listed", path)
            left, top, width, height = (float(side) for side in a["bbox"])
            area = float(a["area"]) if "area" in a else width * height
            box = Box((left, top, width, height), _whole(a["category_id"]), area, bool(a.get("iscrowd", 0)))
            boxes[image].append(box)
        pictures = [
            Picture(
                _whole(image["id"]), _inside(image["file_name"]), (_whole(image["height"]), _whole(image["width"])),
                part, boxes[_whole(image["id"])],
            )
            for image in content["images"]
        ]  # fmt: skip
    except DataError:
        raise
    except (TypeError, KeyError, ValueError, AttributeError) as error:
        why = f"{error.args[0]!r} is missing" if isinstance(error, KeyError) else brief(error)
        raise DataError(f"is not an annotation file of COCO ({why})", path) from error
    return pictures, categories


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not abs(value) < 2**63 or int(value) != value:
        raise ValueError(f"{value!r} is not a whole number")
    return int(value)


def _inside(name: Any) -> str:
    """Returns a file name that stays inside its folder."""
    text = str(name)
    if text.startswith(("/", "\\")) or ".." in text.replace("\\", "/").split("/") or not text:
        raise ValueError(f"the file name {text[:80]!r} leaves its folder")
    return text
