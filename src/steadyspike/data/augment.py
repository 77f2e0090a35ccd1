"""Batched augmentation with torch operations on the device of the batch.

All random numbers come from the generator that is passed in.

All frames of a clip [B, T, C, H, W] share one random draw per sample. Draws are made on the CPU, so the same seed gives
the same augmentation on every device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from steadyspike.data.augmentation.affine_maps import Fill
from steadyspike.data.augmentation.event_clips import CLIP_AUGMENTATIONS
from steadyspike.data.augmentation.rand_augment import GREY, RandAugment
from steadyspike.data.errors import DataError, switch, whole_number


def crop_and_flip(x: Tensor, padding: int, flip: bool, generator: torch.Generator, side: int = 0) -> Tensor:
    """Zero-pads by `padding`, crops at a random position, and mirrors with probability 1/2; one random draw per sample.

    x: [B, ..., H, W] of any dtype (a clip's frames and channels share the draw)
    side: returns [B, ..., side, side]; 0 returns the shape of x
    """
    batch = x.shape[0]
    height, width = (side, side) if side else (x.shape[-2], x.shape[-1])
    rows, columns = x.shape[-2] + 2 * padding - height + 1, x.shape[-1] + 2 * padding - width + 1
    if min(rows, columns) < 1:
        raise DataError(f"crop = {side} is larger than the padded images ({x.shape[-2]} x {x.shape[-1]} + {padding})")
    if rows == columns:
        offset = torch.randint(0, rows, (batch, 2), generator=generator)
    else:
        offset = torch.stack([torch.randint(0, n, (batch,), generator=generator) for n in (rows, columns)], 1)
    mirrored = torch.rand(batch, generator=generator) < 0.5 if flip else torch.zeros(batch, dtype=torch.bool)
    if not batch:
        return x.new_empty((*x.shape[:-2], height, width))
    return apply_crop_and_flip(x, padding, offset.to(x.device), mirrored.to(x.device), (height, width))


def apply_crop_and_flip(
    x: Tensor, padding: int, offset: Tensor, mirrored: Tensor, size: tuple[int, int] | None = None
) -> Tensor:
    """The deterministic part of `crop_and_flip`.

    offset: [B, 2], (row, column) of the crop in the padded image
    mirrored: [B], bool
    size: height and width of the crop; the default is that of x
    """
    batch = x.shape[0]
    flat = pad(x.reshape(batch, -1, *x.shape[-2:]), (padding,) * 4)
    height, width = size or (x.shape[-2], x.shape[-1])
    rows = offset[:, :1] + torch.arange(height, device=x.device)
    columns = torch.arange(width, device=x.device).expand(batch, width)
    columns = offset[:, 1:] + torch.where(mirrored[:, None], width - 1 - columns, columns)
    pixels = rows[:, :, None] * flat.shape[-1] + columns[:, None, :]
    index = pixels.view(batch, 1, -1).expand(-1, flat.shape[1], -1)
    return flat.flatten(2).gather(2, index).view(*x.shape[:-2], height, width)


def normalise(x: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """uint8 images [B, C, H, W] to float32: (x / 255 - mean) / std."""
    scale = torch.tensor([1 / (255 * s) for s in std], device=x.device).view(-1, 1, 1)
    shift = torch.tensor([-m / s for m, s in zip(mean, std)], device=x.device).view(-1, 1, 1)
    return x.to(torch.float32).mul_(scale).add_(shift)


@dataclass(frozen=True)
class Augment:
    """The augmentation of a training batch.

    padding: of the random crop (0: no crop)
    crop: side of the random crop; 0 is the side of the image. Smaller crops take less time; evaluation shows whole
        images
    flip: horizontal flip with probability 1/2
    rand: RandAugment of still images, written as ``rand-m9-n1-mstd0.4-inc1``
    operations: the operations that RandAugment draws from (default: all fifteen)
    interpolation: of RandAugment's rotations, shears and shifts
    clip: for event clips ``"one-of-six"`` or ``"one-of-three"``, see `augmentation.event_clips`

    All but padding and flip come after crop and flip; "" turns them off.
    """

    padding: int = 0
    flip: bool = False
    rand: str = ""
    operations: tuple[str, ...] = ()
    interpolation: str = "bilinear"
    clip: str = ""
    crop: int = 0

    def __post_init__(self) -> None:
        whole_number("padding", self.padding, least=0)
        whole_number("crop", self.crop, least=0)
        switch("flip", self.flip)
        object.__setattr__(self, "operations", tuple(self.operations))
        if self.rand:
            self.rand_augment()
        elif self.operations or self.interpolation != "bilinear":
            raise DataError("operations and interpolation are settings of RandAugment: give rand too")
        if self.clip not in ("", *CLIP_AUGMENTATIONS):
            names = "', '".join(CLIP_AUGMENTATIONS)
            raise DataError(f"clip must be '{names}' or '', not {self.clip!r}")

    def rand_augment(self) -> RandAugment:
        return RandAugment.parse(self.rand, self.operations, self.interpolation)

    def __call__(self, x: Tensor, generator: torch.Generator, fill: Fill = GREY) -> Tensor:
        """fill: the colour for pixels that RandAugment moves an image away from; timm uses the data set's mean."""
        if self.padding or self.flip or self.crop:
            x = crop_and_flip(x, self.padding, self.flip, generator, self.crop)
        if self.rand:
            x = self.rand_augment()(x, generator, fill)
        return CLIP_AUGMENTATIONS[self.clip](x, generator) if self.clip else x

    def as_dict(self) -> dict[str, Any]:
        """Returns the settings as plain values; those of RandAugment, and the side of crops, only if they are used."""
        rand = {"operations": list(self.operations), "interpolation": self.interpolation} if self.rand else {}
        crop = {"crop": self.crop} if self.crop else {}
        return {"padding": self.padding, "flip": self.flip, **crop, "rand": self.rand, **rand, "clip": self.clip}
