"""RandAugment (Cubuk et al., 2019), set by a text as in timm: ``rand-m9-n1-mstd0.4-inc1``.

Every sample gets ``n`` random operations. Each is left out with probability 1/2. Its strength is ``m`` + mstd * N(0,
1), limited to 0..10. With ``inc1`` a larger strength always changes the image more. Operations that move the image fill
empty pixels with ``fill``, which timm sets to the data set's mean. They interpolate in the same way as the data set's
images are resized.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from steadyspike.data.augmentation import affine_maps, colour
from steadyspike.data.errors import DataError

LEVELS = 10.0
GREY = 128.0


@dataclass(frozen=True)
class Draw:
    """Arguments of an operation besides images: strengths 0..1 and signs +-1, each [B], and how to move an image."""

    share: Tensor
    sign: Tensor
    fill: affine_maps.Fill = GREY
    interpolation: str = "bilinear"

    @property
    def signed(self) -> Tensor:
        return self.share * self.sign

    @property
    def factor(self) -> Tensor:
        """Returns the factor of an enhancement; 1 changes nothing."""
        return (1 + 0.9 * self.signed).clamp_min(0.1)


Operation = Callable[[Tensor, Draw], Tensor]


def _whole(values: Tensor) -> Tensor:
    return values.floor().long()


def _moving(move: Callable[[Tensor, Tensor, affine_maps.Fill, str], Tensor], most: float, axis: int = 0) -> Operation:
    """most: the largest value, as a share of an image's side if ``axis`` names one."""

    def operation(x: Tensor, d: Draw) -> Tensor:
        return move(x, most * d.signed * (x.shape[axis] if axis else 1), d.fill, d.interpolation)

    return operation


# The fifteen operations of the increasing kind, with timm's ranges.
OPERATIONS: dict[str, Operation] = {
    "auto_contrast": lambda x, d: colour.auto_contrast(x),
    "equalize": lambda x, d: colour.equalize(x),
    "invert": lambda x, d: colour.invert(x),
    "rotate": _moving(affine_maps.rotate, 30.0),
    "posterize": lambda x, d: colour.posterize(x, 4 - _whole(4 * d.share)),
    "solarize": lambda x, d: colour.solarize(x, 256 - _whole(256 * d.share)),
    "solarize_add": lambda x, d: colour.solarize_add(x, _whole(110 * d.share).clamp_max(128)),
    "colour": lambda x, d: colour.colour(x, d.factor),
    "contrast": lambda x, d: colour.contrast(x, d.factor),
    "brightness": lambda x, d: colour.brightness(x, d.factor),
    "sharpness": lambda x, d: colour.sharpness(x, d.factor),
    "shear_x": _moving(affine_maps.shear_x, 0.3),
    "shear_y": _moving(affine_maps.shear_y, 0.3),
    "translate_x": _moving(affine_maps.translate_x, 0.45, -1),
    "translate_y": _moving(affine_maps.translate_y, 0.45, -2),
}


@dataclass(frozen=True)
class RandAugment:
    """magnitude: m, 0 to 10
    count: n
    spread: mstd
    operations: the operations to draw from; empty means all fifteen

    interpolation: "nearest", "bilinear" or "bicubic", for operations that move the image
    """

    magnitude: float = 9.0
    count: int = 2
    spread: float = 0.0
    probability: float = 0.5
    operations: tuple[str, ...] = ()
    interpolation: str = "bilinear"

    def __post_init__(self) -> None:
        for name in self.operations:
            if name not in OPERATIONS:
                raise DataError(f"RandAugment has no operation {name!r}; it has {', '.join(OPERATIONS)}")
        if self.interpolation not in affine_maps.INTERPOLATIONS:
            names = ", ".join(affine_maps.INTERPOLATIONS)
            raise DataError(f"interpolation of RandAugment must be {names}, not {self.interpolation!r}")

    @classmethod
    def parse(cls, text: str, operations: Sequence[str] = (), interpolation: str = "bilinear") -> RandAugment:
        """Parses ``rand-mM[-nN][-mstdS]-inc1``; n is 2 unless it is given, as in timm."""
        match = re.fullmatch(r"rand((?:-(?:mstd[0-9.]+|m[0-9.]+|n[0-9]+|inc1))+)", text)
        parts = dict(re.findall(r"-(mstd|m|n|inc)([0-9.]+)", match[1])) if match else {}
        if "m" not in parts or "inc" not in parts or not 0 <= float(parts["m"]) <= LEVELS:
            raise DataError(f"'{text}' is not a RandAugment; write rand-m9-n1-mstd0.4-inc1 (m 0 to 10, inc1)")
        numbers = float(parts["m"]), int(parts.get("n", 2)), float(parts.get("mstd", 0.0))
        return cls(*numbers, operations=tuple(operations), interpolation=interpolation)

    def __call__(self, x: Tensor, generator: torch.Generator, fill: affine_maps.Fill = GREY) -> Tensor:
        """Maps uint8 [B, C, H, W] to the same shape.

        All numbers are drawn on the CPU, also those of operations that are not used.
        """
        if x.dtype != torch.uint8 or x.ndim != 4:
            raise DataError(f"RandAugment takes uint8 images [B, C, H, W], got {x.dtype} {list(x.shape)}")
        batch, names = len(x), self.operations or tuple(OPERATIONS)
        for _ in range(self.count):
            chosen = torch.randint(0, len(names), (batch,), generator=generator)
            used = torch.rand(batch, generator=generator) < self.probability
            noise = torch.randn(batch, generator=generator)
            share = ((self.magnitude + self.spread * noise) / LEVELS).clamp(0, 1)
            sign = torch.where(torch.rand(batch, generator=generator) < 0.5, -1.0, 1.0)
            x = x.clone()
            for number, name in enumerate(names):
                mine = torch.nonzero(used & (chosen == number)).flatten()
                if len(mine):
                    to = mine.to(x.device)
                    draw = Draw(share[mine].to(x.device), sign[mine].to(x.device), fill, self.interpolation)
                    x[to] = OPERATIONS[name](x[to], draw)
        return x
