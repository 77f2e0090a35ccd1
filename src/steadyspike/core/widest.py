"""The widest floating-point type of a device, in which sums over many neurons and samples are kept."""

from __future__ import annotations

import torch

WITHOUT_FLOAT64 = {"mps"}  # Apple's GPUs


def widest(device: torch.device) -> torch.dtype:
    """float64; float32 on devices that have nothing wider."""
    return torch.float32 if device.type in WITHOUT_FLOAT64 else torch.float64
