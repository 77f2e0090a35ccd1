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


def crop_and_flip(x: Tensor, padding: int, flip: bool, generator: torch.Generator) -> Tensor:
    """Zero-pads by `padding`, crops back to the original size at a random position, and mirrors with probability 1/2.

    One random draw per sample.

    x: [B, ..., H, W] of any dtype (a clip's frames and channels share the draw); returns the same shape.
    """
    batch, height, width = x.shape[0], x.shape[-2], x.shape[-1]
    offset = torch.randint(0, 2 * padding + 1, (batch, 2), generator=generator)
    mirrored = torch.rand(batch, generator=generator) < 0.5 if flip else torch.zeros(batch, dtype=torch.bool)
    return (
        apply_crop_and_flip(x, padding, offset.to(x.device), mirrored.to(x.device))
        if batch
        else x.view(x.shape[:-2] + (height, width))
    )


def apply_crop_and_flip(x: Tensor, padding: int, offset: Tensor, mirrored: Tensor) -> Tensor:
    """The deterministic part of `crop_and_flip`.

    offset: [B, 2], (row, column) of the crop in the padded image
    mirrored: [B], bool
    """
    batch, height, width = x.shape[0], x.shape[-2], x.shape[-1]
    flat = pad(x.reshape(batch, -1, height, width), (padding,) * 4)
    rows = offset[:, :1] + torch.arange(height, device=x.device)
    columns = torch.arange(width, device=x.device).expand(batch, width)
    columns = offset[:, 1:] + torch.where(mirrored[:, None], width - 1 - columns, columns)
    pixels = rows[:, :, None] * flat.shape[-1] + columns[:, None, :]
    index = pixels.view(batch, 1, -1).expand(-1, flat.shape[1], -1)
    return flat.flatten(2).gather(2, index).view(x.shape)


def normalise(x: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """uint8 images [B, C, H, W] to float32: (x / 255 - mean) / std."""
    scale = torch.tensor([1 / (255 * s) for s in std], device=x.device).view(-1, 1, 1)
    shift = torch.tensor([-m / s for m, s in zip(mean, std)], device=x.device).view(-1, 1, 1)
    return x.to(torch.float32).mul_(scale).add_(shift)


@dataclass(frozen=True)
class Augment:
    """The augmentation of a training batch.

    padding: of the random crop (0: no crop)
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

    def __post_init__(self) -> None:
        whole_number("padding", self.padding, least=0)
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
        if self.padding or self.flip:
            x = crop_and_flip(x, self.padding, self.flip, generator)
        if self.rand:
            x = self.rand_augment()(x, generator, fill)
        return CLIP_AUGMENTATIONS[self.clip](x, generator) if self.clip else x

    def as_dict(self) -> dict[str, Any]:
        """Returns the settings as plain values; those of RandAugment only if it is used."""
        rand = {"operations": list(self.operations), "interpolation": self.interpolation} if self.rand else {}
        return {"padding": self.padding, "flip": self.flip, "rand": self.rand, **rand, "clip": self.clip}
