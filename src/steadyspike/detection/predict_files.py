"""`steadyspike predict` for detection runs: pictures with boxes, and a JSON file of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from steadyspike.data.errors import DataError

if TYPE_CHECKING:
    from rich.console import Console

SURE = 0.25  # the smallest score of a box that is shown
FILE = "predictions.json"
SENSOR = (34, 34)  # the sensor of .bin files, which do not contain it: that of N-MNIST


def predict_boxes(run: Path, files: list[Path], confidence: float | None, out: Path | None, console: Console) -> None:
    """Writes a picture per image to ``out`` (default: predictions in the working directory), and predictions.json.

    console: prints the table of boxes
    """
    from rich.table import Column, Table

    from steadyspike.detection.drawing import draw_boxes
    from steadyspike.detection.prediction import BoxPredictor
    from steadyspike.train.files.atomic import write_atomically

    predictor = BoxPredictor(run, SURE if confidence is None else confidence)
    folder = out or Path("predictions")
    folder.mkdir(parents=True, exist_ok=True)
    table = Table(Column("image", overflow="fold"), "boxes", Column("the best", overflow="fold"))
    listed: list[dict[str, Any]] = []
    taken = _given(files)
    for name, image in pictures(files):
        boxes = predictor(image)
        path = _free(folder / Path(name).with_suffix(".png"), taken)
        path.parent.mkdir(parents=True, exist_ok=True)
        drawn = draw_boxes(image, boxes, predictor.names)
        write_atomically(path, lambda file, drawn=drawn: drawn.save(file, "PNG"))
        listed.append({"file": name, "picture": str(path.relative_to(folder)), "width": image.width,
                       "height": image.height, "boxes": boxes})  # fmt: skip
        best = ", ".join(f"{row['category']} {row['score']:.2f}" for row in boxes[:3])
        table.add_row(name, str(len(boxes)), best)
    if not listed:
        raise DataError("the given files contain no image")
    content = {"run": str(run), "confidence": predictor.confidence, "images": listed}
    text = json.dumps(content, indent=1, ensure_ascii=False) + "\n"
    write_atomically(folder / FILE, lambda file: file.write(text.encode()))
    console.print(table)
    console.print(f"pictures and {FILE} are in {folder}", soft_wrap=True)


def _given(files: list[Path]) -> set[Path]:
    """Returns the given files and those in given folders, which no picture may replace."""
    return {path.resolve() for file in files for path in (file.iterdir() if file.is_dir() else [file])}


def _free(path: Path, taken: set[Path]) -> Path:
    """Returns ``path``, with a number added if another image of this call has that name or if it is an input image."""
    number, free = 1, path
    while free.resolve() in taken:
        number += 1
        free = path.with_name(f"{path.stem}-{number}{path.suffix}")
    taken.add(free.resolve())
    return free


def pictures(files: list[Path]) -> Iterator[tuple[str, Any]]:
    """Yields (name, RGB image) of image files, of the images of folders in order, and of recordings frame by frame."""
    from steadyspike.data.formats.recording_file import SUFFIXES as RECORDINGS
    from steadyspike.data.images import open_rgb
    from steadyspike.data.sets.image_folder import SUFFIXES as IMAGES

    for file in files:
        if file.is_dir():
            inside = sorted(path for path in file.iterdir() if path.suffix.lower() in IMAGES)
            if not inside:
                raise DataError("is a folder without images", file)
            for path in inside:
                yield f"{file.resolve().name or 'images'}/{path.name}", open_rgb(path, upright=True)
        elif not file.is_file():
            raise DataError("is not a file", file)
        elif file.suffix in RECORDINGS:
            yield from _frames(file)
        else:
            yield file.name, open_rgb(file, upright=True)


def _frames(file: Path) -> Iterator[tuple[str, Any]]:
    """Returns a recording as pictures: brighter pixels red, darker ones blue, as in `steadyspike data show`."""
    from PIL import Image

    from steadyspike.data.formats.recording_file import read_recording
    from steadyspike.data.frames import FrameSettings, clip
    from steadyspike.data.show import event_pixels

    frames = clip(read_recording(file, SENSOR), FrameSettings())
    full = float(max(frames.max(), 1))
    for number, frame in enumerate(frames, 1):
        yield f"{file.stem}/frame-{number:03d}.png", Image.fromarray(event_pixels(frame, full))
