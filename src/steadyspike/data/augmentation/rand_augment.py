"""RandAugment (Cubuk et al., 2019) by the text that timm uses: ``rand-m9-n1-mstd0.4-inc1``.

Every sample gets ``n`` operations, each drawn from all and left out with probability 1/2, with a strength of
``m`` + mstd * N(0, 1) in 0..10. ``inc1``: a larger strength always changes more.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from steadyspike.data.augmentation import affine_maps, colour
from steadyspike.data.errors import DataError

LEVELS = 10.0
FILL = 128.0
Operation = Callable[[Tensor, Tensor, Tensor], Tensor]  # images, strength 0..1 [B], sign +-1 [B]


def _factor(share: Tensor, sign: Tensor) -> Tensor:
    return (1 + 0.9 * share * sign).clamp_min(0.1)


def _whole(values: Tensor) -> Tensor:
    return values.floor().long()


# The fifteen operations of the increasing kind, with timm's ranges.
OPERATIONS: dict[str, Operation] = {
    "auto_contrast": lambda x, share, sign: colour.auto_contrast(x),
    "equalize": lambda x, share, sign: colour.equalize(x),
    "invert": lambda x, share, sign: colour.invert(x),
    "rotate": lambda x, share, sign: affine_maps.rotate(x, 30 * share * sign, FILL),
    "posterize": lambda x, share, sign: colour.posterize(x, 4 - _whole(4 * share)),
    "solarize": lambda x, share, sign: colour.solarize(x, 256 - _whole(256 * share)),
    "solarize_add": lambda x, share, sign: colour.solarize_add(x, _whole(110 * share).clamp_max(128)),
    "colour": lambda x, share, sign: colour.colour(x, _factor(share, sign)),
    "contrast": lambda x, share, sign: colour.contrast(x, _factor(share, sign)),
    "brightness": lambda x, share, sign: colour.brightness(x, _factor(share, sign)),
    "sharpness": lambda x, share, sign: colour.sharpness(x, _factor(share, sign)),
    "shear_x": lambda x, share, sign: affine_maps.shear_x(x, 0.3 * share * sign, FILL),
    "shear_y": lambda x, share, sign: affine_maps.shear_y(x, 0.3 * share * sign, FILL),
    "translate_x": lambda x, share, sign: affine_maps.translate_x(x, 0.45 * share * sign * x.shape[-1], FILL),
    "translate_y": lambda x, share, sign: affine_maps.translate_y(x, 0.45 * share * sign * x.shape[-2], FILL),
}


@dataclass(frozen=True)
class RandAugment:
    """magnitude: m, 0 to 10. count: n. spread: mstd."""

    magnitude: float = 9.0
    count: int = 2
    spread: float = 0.0
    probability: float = 0.5

    @classmethod
    def parse(cls, text: str) -> RandAugment:
        """``rand-mM[-nN][-mstdS]-inc1``; n is 2 unless given, as in timm."""
        found = re.fullmatch(r"rand((?:-(?:mstd[0-9.]+|m[0-9.]+|n[0-9]+|inc1))+)", text)
        parts = dict(re.findall(r"-(mstd|m|n|inc)([0-9.]+)", found[1])) if found else {}
        if "m" not in parts or "inc" not in parts or not 0 <= float(parts["m"]) <= LEVELS:
            raise DataError(f"'{text}' is no RandAugment; write rand-m9-n1-mstd0.4-inc1 (m 0 to 10, inc1).")
        return cls(float(parts["m"]), int(parts.get("n", 2)), float(parts.get("mstd", 0.0)))

    def __call__(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """uint8 [B, C, H, W] -> the same; all numbers are drawn on the CPU, whatever is chosen."""
        if x.dtype != torch.uint8 or x.ndim != 4:
            raise DataError(f"RandAugment takes uint8 images [B, C, H, W], got {x.dtype} {list(x.shape)}.")
        batch, names = len(x), list(OPERATIONS)
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
                    x[to] = OPERATIONS[name](x[to], share[mine].to(x.device), sign[mine].to(x.device))
        return x
