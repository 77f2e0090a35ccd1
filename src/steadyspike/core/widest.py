"""The widest floating-point type of a device, used for sums over many neurons and samples."""

from __future__ import annotations

import torch

WITHOUT_FLOAT64 = {"mps"}  # Apple's GPUs


def widest(device: torch.device) -> torch.dtype:
    """Returns float64, or float32 on devices that do not support float64."""
    return torch.float32 if device.type in WITHOUT_FLOAT64 else torch.float64
