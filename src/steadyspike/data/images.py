"""Image files to uint8 tensors with Pillow: decoding and the standard ImageNet transforms, one image at a time."""

from __future__ import annotations

import io
import math
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from steadyspike.data.errors import DataError, brief, needs
from steadyspike.data.events import regular_size

if TYPE_CHECKING:
    from PIL.Image import Image, Resampling

Box = tuple[int, int, int, int]
# The formats that image folders contain. Pillow would also accept formats that start other programs (EPS).
FORMATS = ("JPEG", "PNG", "BMP", "WEBP", "PPM", "TIFF", "GIF")
# ImageNet's largest photograph has 61 million pixels. A pixel needs four bytes of memory, and as many again while it is
# converted.
MOST_PIXELS = 1 << 26
# The largest number of pixels while an image is resized; a photograph needs less than a tenth of it.
MOST_RESIZED = 1 << 24
STRIP = 1 << 20


def open_rgb(path: str | Path, content: bytes | None = None, *, upright: bool = False) -> Image:
    """Decodes an image file to RGB; DataError if the file is damaged or not an image.

    content: the bytes of the file, if it was read from an archive.
    upright: rotate a photograph by its EXIF orientation, as viewers and labelling tools do.
    """
    try:
        from PIL import Image
    except ImportError as error:
        raise needs("Pillow", "data", "decoding images") from error
    if content is None:
        regular_size(path)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # odd metadata in real photographs (ImageNet has some) must not stop a run
            with Image.open(path if content is None else io.BytesIO(content), formats=FORMATS) as image:
                check_size(image, path)
                turn = orientation(image) if upright else 1
                return turned(to_bytes(image, path).convert("RGB"), turn)
    except DataError:
        raise
    except Exception as error:  # Pillow's decoders raise many kinds of errors on damaged files
        raise DataError(f"is not an image that can be decoded ({brief(error)})", path) from error


def orientation(image: Image) -> int:
    """Returns the EXIF orientation of an opened image, 1 to 8; 1 (upright) if it has none or it cannot be read."""
    try:
        value = image.getexif().get(0x0112, 1)
    except Exception:  # an image with damaged metadata is still read
        return 1
    return value if isinstance(value, int) and 1 <= value <= 8 else 1


def turned(image: Image, turn: int) -> Image:
    """Returns the image rotated by its EXIF orientation ``turn``; values 5 to 8 swap height and width."""
    from PIL.Image import Transpose

    ways = {
        2: Transpose.FLIP_LEFT_RIGHT, 3: Transpose.ROTATE_180, 4: Transpose.FLIP_TOP_BOTTOM, 5: Transpose.TRANSPOSE,
        6: Transpose.ROTATE_270, 7: Transpose.TRANSVERSE, 8: Transpose.ROTATE_90,
    }  # fmt: skip
    return image.transpose(ways[turn]) if turn in ways else image


def check_size(image: Image, path: str | Path) -> None:
    """Raises DataError if the image's header states more than MOST_PIXELS; nothing is decoded yet."""
    width, height = image.size
    if width * height > MOST_PIXELS:
        raise DataError(
            f"has {width} x {height} pixels; images of more than {MOST_PIXELS} are not read: resize it", path
        )


def to_bytes(image: Image, path: str | Path) -> Image:
    """Scales 16-bit grey to 8 bits (Pillow's own conversion clips it to white).

    Raises DataError if the range is not known.
    """
    from PIL import Image as pillow

    sixteen = image.mode.startswith("I;16") or (image.mode == "I" and image.format in ("PNG", "PPM"))
    if sixteen:
        width, height = image.size
        grey = np.empty((height, width), np.uint8)
        rows = max(1, STRIP // width)
        for top in range(0, height, rows):  # in strips: the whole image would need four bytes per pixel
            strip = image.crop((0, top, width, min(top + rows, height)))
            grey[top : top + rows] = (np.asarray(strip).astype(np.uint32) * 255 + 32767) // 65535
        return pillow.fromarray(grey)
    if image.mode in ("I", "F"):
        raise DataError(f"has pixels of mode {image.mode}, whose range is unknown; save it with 8 or 16 bits", path)
    return image


def to_tensor(image: Image) -> Tensor:
    """uint8 [3, H, W]."""
    return torch.from_numpy(np.array(image, dtype=np.uint8)).permute(2, 0, 1).contiguous()


def random_box(
    width: int,
    height: int,
    generator: torch.Generator,
    scale: tuple[float, float] = (0.08, 1.0),
    ratio: tuple[float, float] = (3 / 4, 4 / 3),
) -> Box:
    """Returns the box (left, top, right, bottom) of RandomResizedCrop.

    Its share of the area lies in `scale`, and its aspect ratio is log-uniform in `ratio`.
    """
    low, high = math.log(ratio[0]), math.log(ratio[1])
    for _ in range(10):
        share, aspect, at_x, at_y = torch.rand(4, generator=generator, dtype=torch.float64).tolist()
        area = width * height * (scale[0] + share * (scale[1] - scale[0]))
        shape = math.exp(low + aspect * (high - low))
        w, h = round(math.sqrt(area * shape)), round(math.sqrt(area / shape))
        if 0 < w <= width and 0 < h <= height:
            left, top = int(at_x * (width - w + 1)), int(at_y * (height - h + 1))
            return left, top, left + w, top + h
    w = min(width, max(1, round(height * ratio[1])))
    h = min(height, max(1, round(width / ratio[0])))
    left, top = (width - w) // 2, (height - h) // 2
    return left, top, left + w, top + h


def random_resized_crop(
    image: Image, size: int, generator: torch.Generator, least_area: float = 0.08, interpolation: str = "bilinear"
) -> Tensor:
    """The training transform: a random box, resized to size x size, mirrored with probability 1/2; uint8 [3, S, S].

    least_area: the smallest share of the image's area that a box may have.
    """
    from PIL.Image import Transpose

    # First crop, then resize: resize(box=...) would mix in pixels from outside of the box at its edges.
    box = random_box(*image.size, generator, (least_area, 1.0))
    crop = image.crop(box).resize((size, size), _resampling(interpolation))
    if torch.rand((), generator=generator) < 0.5:
        crop = crop.transpose(Transpose.FLIP_LEFT_RIGHT)
    return to_tensor(crop)


def _resampling(interpolation: str) -> Resampling:
    from PIL.Image import Resampling

    return {"bilinear": Resampling.BILINEAR, "bicubic": Resampling.BICUBIC}[interpolation]


def resize_and_centre(image: Image, resize: int, size: int, interpolation: str = "bilinear") -> Tensor:
    """The evaluation transform: resizes the short side to `resize` and keeps the central size x size.

    Returns uint8 [3, S, S].
    """
    width, height = image.size
    short = min(width, height)
    if short != resize:
        width, height = (resize * width // short, resize * height // short)
    left, top = round((width - size) / 2), round((height - size) / 2)
    if width * height > MOST_RESIZED:
        # A strip of 20,000 x 1 pixels would become 5 million x 256, of which only the middle is kept. Therefore only
        # the middle is resized. The result may differ by rounding from resizing the whole image, so this is not done
        # for other images.
        across, down = image.width / width, image.height / height
        box = (left * across, top * down, (left + size) * across, (top + size) * down)
        inside = (max(0.0, box[0]), max(0.0, box[1]), min(image.width, box[2]), min(image.height, box[3]))
        return to_tensor(image.resize((size, size), _resampling(interpolation), box=inside))
    if short != resize:
        image = image.resize((width, height), _resampling(interpolation))
    return to_tensor(image.crop((left, top, left + size, top + size)))


def squeeze(image: Image, size: int) -> Tensor:
    """Resizes the whole image to size x size (bilinear), whatever its aspect ratio; returns uint8 [3, S, S]."""
    from PIL.Image import Resampling

    if image.size == (size, size):
        return to_tensor(image)
    # Pillow resizes rows first, which takes size x height pixels for a tall image
    if size * image.height > MOST_RESIZED:
        image = image.resize((image.width, size), Resampling.BILINEAR)
    return to_tensor(image.resize((size, size), Resampling.BILINEAR))
