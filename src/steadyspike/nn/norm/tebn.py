"""Temporal effective batch norm (Duan et al., 2022): joint statistics, one learned weight per time step."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from steadyspike.nn.norm.base import NormOptions, Unpack, check_steps
from steadyspike.nn.norm.tdbn import TDBN
from steadyspike.nn.whole import whole_number


class TEBN(TDBN):
    """y[t] = p[t] * BN(x)[t] on [T, B, C, ...], with BN's mean and variance over (T, B, ...) per channel.

    p [T] is learned, starts at 1 and may become negative. It scales the whole output, bias included.
    """

    no_decay: ClassVar[tuple[str, ...]] = ("p",)

    def __init__(self, channels: int, timesteps: int, **options: Unpack[NormOptions]) -> None:
        super().__init__(channels, **options)
        self.timesteps = whole_number(timesteps, "timesteps")
        self.p = nn.Parameter(torch.ones(self.timesteps))

    def check_input(self, x: Tensor) -> None:
        super().check_input(x)
        check_steps(self, x.shape[0], self.timesteps)

    def forward(self, x: Tensor) -> Tensor:
        """Maps [T, B, C, ...] to the same shape."""
        y = super().forward(x)
        return y * self.p[: x.shape[0]].to(y.dtype).view(-1, *([1] * (x.ndim - 1)))

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, timesteps={self.timesteps}"
