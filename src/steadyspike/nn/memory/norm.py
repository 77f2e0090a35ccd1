"""`NotedTDBN`: a tdBN that records its scale and shift, so that the next neuron can compute its input again."""

from __future__ import annotations

import torch
from torch import Tensor

from steadyspike.core.torch_private import batch_norm_with_statistics
from steadyspike.nn.memory.notes import note_norm, plain_only
from steadyspike.nn.norm.tdbn import TDBN


class NotedTDBN(TDBN):
    """`TDBN` with the same operations and parameters, which also attaches its scale and shift to its output (a note).

    It attaches no note if statistics are shared between processes or if no gradient is needed.
    """

    def forward(self, x: Tensor) -> Tensor:
        """[T, B, C, ...] -> the same shape."""
        if self.synchronises or plain_only() or x.numel() < 2 * self.channels or x.ndim < 3:
            return super().forward(x)
        self.check_input(x)
        self.count_batch()
        weight = self.weight if self.factor == 1.0 else self.weight * self.factor
        out, mean, invstd = batch_norm_with_statistics(
            x.flatten(0, 1), weight, self.bias, self.running(), self.training, self.momentum, self.eps
        )
        out = out.unflatten(0, x.shape[:2])
        note_norm(out, x, *self._affine(weight, mean, invstd))
        return out

    @torch.no_grad()
    def _affine(self, weight: Tensor, mean: Tensor, invstd: Tensor) -> tuple[Tensor, Tensor]:
        """(scale, shift), each [C] in float32 or better, of the norm with these batch statistics."""
        dtype = torch.promote_types(weight.dtype, torch.float32)
        if not self.training:
            mean, invstd = self.running_mean, torch.rsqrt(self.running_var.to(dtype) + self.eps)
        scale = weight.to(dtype) * invstd
        shift = -mean * scale
        return scale, shift if self.bias is None else shift + self.bias
