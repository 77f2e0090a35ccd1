"""Contact sheets: a PNG of samples, class by class; event clips as two-colour frames over time."""

from __future__ import annotations

import unicodedata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from steadyspike.data.bundle import DataBundle
from steadyspike.data.errors import disk_errors, needs, whole_number
from steadyspike.data.sources import Request

if TYPE_CHECKING:
    from PIL.Image import Image

Pixels = NDArray[np.uint8]
PAPER, INK, FAINT = (255, 255, 255), (32, 33, 36), (120, 124, 130)
ON, OFF = np.array([205, 60, 30.0]), np.array([30, 90, 190.0])
GAP, MARGIN, TEXT = 6, 18, 13


def pick(bundle: DataBundle, part: str, per_class: int, most_classes: int) -> NDArray[np.int64]:
    """Chooses the first `per_class` samples of at most `most_classes` classes, which are spread over all classes."""
    whole_number("per_class", per_class)
    index = bundle.indices(part)
    labels = bundle.dataset.population.labels[index]
    chosen = np.linspace(0, bundle.num_classes - 1, min(most_classes, bundle.num_classes)).round().astype(int)
    return np.concatenate([index[labels == label][:per_class] for label in chosen])


def raw_samples(bundle: DataBundle, index: NDArray[np.int64]) -> NDArray[Any]:
    """Returns samples [N, ...] before normalisation, as they are used in evaluation."""
    request = Request(torch.from_numpy(index), False, 0)
    return next(iter(bundle.dataset.source.reader(0).stream([request]))).numpy()


def image_pixels(image: NDArray[Any]) -> Pixels:
    """Converts [C, H, W] bytes (or floats, stretched to their range) to RGB [H, W, 3]."""
    if image.dtype != np.uint8:
        low, high = float(image.min()), float(image.max())
        image = ((image - low) / max(high - low, 1e-9) * 255).astype(np.uint8)
    image = image[:3] if image.shape[0] >= 3 else image[:1].repeat(3, axis=0)
    return image.transpose(1, 2, 0)


def event_pixels(frame: NDArray[Any], full: float) -> Pixels:
    """Draws a frame [2, H, W] of counts: brighter pixels red, darker ones blue, white if there was no event.

    `full` is the count that is drawn in full colour; a pixel with both polarities mixes the two colours.
    """
    off, on = np.sqrt(np.clip(frame.astype(np.float64) / max(full, 1e-9), 0, 1))
    total = on + off
    colour = (on[..., None] * ON + off[..., None] * OFF) / np.maximum(total, 1e-9)[..., None]
    cover = np.minimum(total, 1)[..., None]
    return (255 * (1 - cover) + colour * cover).round().astype(np.uint8)


def frame_pixels(frame: NDArray[Any], full: float) -> Pixels:
    """Draws a frame of a clip: events (also with their sum as a third channel), or an image [C, H, W]."""
    if len(frame) == 2 or (len(frame) == 3 and np.allclose(frame[0] + frame[1], frame[2])):
        return event_pixels(frame[:2], full)
    return image_pixels(frame)


def contact_sheet(bundle: DataBundle, part: str = "train", per_class: int = 8) -> Image:
    """For still images, a row shows `per_class` samples of a class. For clips, a row shows the T frames of one clip."""
    clips = bundle.timesteps is not None
    index = pick(bundle, part, 1 if clips else per_class, 10)
    samples = raw_samples(bundle, index)
    names = [bundle.classes[label] for label in bundle.dataset.population.labels[index]]
    rows: dict[str, list[Pixels]] = {}
    for name, sample in zip(names, samples):
        if clips:
            full = float(np.quantile(sample[sample > 0], 0.95)) if (sample > 0).any() else 1.0
            rows[name] = [frame_pixels(frame, full) for frame in sample]
        else:
            rows.setdefault(name, []).append(image_pixels(sample))
    columns = [f"t={t + 1}" for t in range(bundle.timesteps)] if bundle.timesteps is not None else []
    legend = "red: brighter, blue: darker" if clips else ""
    return _sheet(rows, columns, f"{bundle.name}, {part} part", str(bundle).partition(": ")[2], legend)


def _sheet(rows: dict[str, list[Pixels]], columns: list[str], title: str, subtitle: str, legend: str) -> Image:
    try:
        from PIL import Image, ImageDraw, ImageFont
    except ImportError as error:
        raise needs("Pillow", "data", "drawing a contact sheet") from error
    cells = next(iter(rows.values()))
    height, width = cells[0].shape[:2]
    zoom = max(1, round(72 / max(height, width)))
    cell_h, cell_w = height * zoom, width * zoom
    font, bold = ImageFont.load_default(size=TEXT), ImageFont.load_default(size=TEXT + 5)
    written = {name: drawable(name, font) for name in rows}
    left = MARGIN + max(round(font.getlength(name)) for name in written.values()) + 2 * GAP
    lines = _wrapped(subtitle, left + max(map(len, rows.values())) * (cell_w + GAP) - MARGIN, font.getlength)
    top = MARGIN + TEXT + 5 + 2 * GAP + len(lines) * (TEXT + 5) + (TEXT + 2 * GAP if columns else GAP)
    sheet = Image.new(
        "RGB",
        (
            max(
                left + max(map(len, rows.values())) * (cell_w + GAP) + MARGIN, round(bold.getlength(title)) + 2 * MARGIN
            ),
            top + len(rows) * (cell_h + GAP) + MARGIN + (TEXT if legend else 0),
        ),
        PAPER,
    )
    pen = ImageDraw.Draw(sheet)
    pen.text((MARGIN, MARGIN), title, INK, font=bold)
    for number, line in enumerate(lines):
        pen.text((MARGIN, MARGIN + TEXT + 5 + 2 * GAP + number * (TEXT + 5) - 2), line, FAINT, font=font)
    for number, text in enumerate(columns):
        pen.text((left + number * (cell_w + GAP) + cell_w // 2, top - GAP // 2), text, FAINT, font=font, anchor="mb")
    for row, (name, images) in enumerate(rows.items()):
        y = top + row * (cell_h + GAP)
        pen.text((left - 2 * GAP, y + cell_h // 2), written[name], INK, font=font, anchor="rm")
        for column, pixels in enumerate(images):
            x = left + column * (cell_w + GAP)
            sheet.paste(Image.fromarray(pixels).resize((cell_w, cell_h), Image.Resampling.NEAREST), (x, y))
            pen.rectangle((x - 1, y - 1, x + cell_w, y + cell_h), outline=(218, 220, 224))
    if legend:
        pen.text((left, sheet.height - MARGIN + GAP), legend, FAINT, font=font, anchor="lb")
    return sheet


def drawable(text: str, font: Any) -> str:
    """Returns `text` in characters that the font has: without accents, or as \\u732b.

    Empty boxes could not be distinguished.
    """
    missing = bytes(font.getmask("\U0010ffff"))
    return "".join(c if c.isascii() or bytes(font.getmask(c)) != missing else _in_ascii(c) for c in text)


def _in_ascii(letter: str) -> str:
    plain = unicodedata.normalize("NFKD", letter).encode("ascii", "ignore").decode()
    return plain or letter.encode("ascii", "backslashreplace").decode()


def _wrapped(text: str, width: float, length: Any) -> list[str]:
    lines, line = [], ""
    for word in text.split():
        if line and length(f"{line} {word}") > width:
            lines.append(line)
            line = word
        else:
            line = f"{line} {word}".strip()
    return [*lines, line]


def show(bundle: DataBundle, out: str | Path, part: str = "train", per_class: int = 8) -> Path:
    """Writes the contact sheet of a part to the PNG file `out`."""
    path = Path(out)
    sheet = contact_sheet(bundle, part, per_class)
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        sheet.save(path, format="PNG")
    return path
