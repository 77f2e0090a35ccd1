"""Colour operations of RandAugment on uint8 images [B, C, H, W], as Pillow defines them; strengths are per sample."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import conv2d


def _each(values: Tensor) -> Tensor:
    return values.view(-1, 1, 1, 1)


def _blend(degenerate: Tensor, x: Tensor, factor: Tensor) -> Tensor:
    """Returns ``degenerate + factor (x - degenerate)``, truncated to whole numbers in 0..255 as Pillow does."""
    mixed = degenerate.float() + _each(factor) * (x.float() - degenerate.float())
    return mixed.clamp(0, 255).to(torch.uint8)


def grey(x: Tensor) -> Tensor:
    """Luminance [B, 1, H, W] by Pillow's integer formula; for an image of one or two channels it is their mean."""
    if x.shape[1] != 3:
        return x.float().mean(1, keepdim=True).to(torch.uint8)
    red, green, blue = x.to(torch.int32).unbind(1)
    return ((red * 19595 + green * 38470 + blue * 7471 + 0x8000) >> 16).to(torch.uint8).unsqueeze(1)


def colour(x: Tensor, factor: Tensor) -> Tensor:
    """Saturation: 0 gives a grey image, 1 the image itself."""
    return _blend(grey(x).expand_as(x), x, factor)


def contrast(x: Tensor, factor: Tensor) -> Tensor:
    """Contrast: 0 gives the image's mean grey, 1 the image itself."""
    mean = (grey(x).float().mean((1, 2, 3)) + 0.5).floor()
    return _blend(_each(mean).expand(x.shape), x, factor)


def brightness(x: Tensor, factor: Tensor) -> Tensor:
    """Brightness: 0 gives black, 1 the image itself."""
    return _blend(torch.zeros_like(x), x, factor)


def sharpness(x: Tensor, factor: Tensor) -> Tensor:
    """Sharpness: 0 gives the image smoothed by a 3x3 filter (except its border), 1 the image, 2 a sharper one."""
    kernel = torch.ones(3, 3, device=x.device)
    kernel[1, 1] = 5
    batch, channels, height, width = x.shape
    smooth = x.float()
    if min(height, width) > 2:
        flat = smooth.view(batch * channels, 1, height, width)
        inner = (
            conv2d(flat, (kernel / 13).view(1, 1, 3, 3)).add(0.5).floor().view(batch, channels, height - 2, width - 2)
        )
        smooth = smooth.clone()
        smooth[..., 1:-1, 1:-1] = inner
    return _blend(smooth, x, factor)


def invert(x: Tensor) -> Tensor:
    return 255 - x


def posterize(x: Tensor, bits: Tensor) -> Tensor:
    """Keeps the ``bits`` [B] highest bits of every value."""
    mask = 255 - (2 ** (8 - bits.clamp(0, 8)) - 1)
    return x & _each(mask).to(torch.uint8)


def solarize(x: Tensor, threshold: Tensor) -> Tensor:
    """Inverts values of at least ``threshold`` [B]."""
    return torch.where(x.to(torch.int32) >= _each(threshold), 255 - x, x)


def solarize_add(x: Tensor, add: Tensor, threshold: int = 128) -> Tensor:
    """Adds ``add`` [B] to values below ``threshold``."""
    raised = (x.to(torch.int32) + _each(add)).clamp(0, 255).to(torch.uint8)
    return torch.where(x < threshold, raised, x)


def auto_contrast(x: Tensor) -> Tensor:
    """Stretches every channel of every image to 0..255."""
    low = x.amin((-2, -1), keepdim=True).float()
    high = x.amax((-2, -1), keepdim=True).float()
    scale = 255.0 / (high - low).clamp_min(1)
    stretched = (x.float() * scale - low * scale).clamp(0, 255).to(torch.uint8)
    return torch.where(high > low, stretched, x)


def equalize(x: Tensor) -> Tensor:
    """Makes the histogram of every channel of every image flat."""
    batch, channels = x.shape[:2]
    flat = x.reshape(batch * channels, -1).long()
    counts = torch.zeros(len(flat), 256, dtype=torch.long, device=x.device)
    counts.scatter_add_(1, flat, torch.ones_like(flat))
    last = counts.gather(1, flat.amax(1, keepdim=True))
    step = (counts.sum(1, keepdim=True) - last) // 255
    before = counts.cumsum(1) - counts
    table = ((before + step // 2) // step.clamp_min(1)).clamp(0, 255)
    return torch.where(step > 0, table.gather(1, flat), flat).to(torch.uint8).view(x.shape)
