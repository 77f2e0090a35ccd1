"""tdBN that keeps its input only: it returns a `Current`, which the neuron behind it works out from that input."""

from __future__ import annotations

import torch
from torch import Tensor

from steadyspike.kernels.current import Current
from steadyspike.kernels.terms import Term
from steadyspike.nn.norm.tdbn import TDBN


class DeferredTDBN(TDBN):
    """`TDBN` with the same parameters, statistics and gradients, whose output is not written to memory.

    Between processes that share their statistics, and inside ``torch.compile``, it is the plain layer.
    """

    def forward(self, x: Tensor) -> Tensor | Current:  # type: ignore[override]
        """[T, B, C, ...] -> a current of the same shape."""
        if self.synchronises or torch.compiler.is_compiling() or not isinstance(x, Tensor):
            return super().forward(x)
        self.check_input(x)
        self.count_batch()
        mean, var = self._statistics(x)
        weight = self.weight if self.factor == 1.0 else self.weight * self.factor
        return Current((Term(x, weight, self.bias, mean, torch.rsqrt(var + self.eps), self.training),), x.shape[0])

    @torch.no_grad()
    def _statistics(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and biased variance of the batch (moving the running ones), or the running ones in evaluation mode."""
        if not self.training:
            # Copies, since a later training forward may move the buffers before this one's backward.
            return self.running_mean.clone(), self.running_var.clone()
        if x.numel() // self.channels < 2:
            raise ValueError(f"batch statistics need more than 1 value per channel, got shape {list(x.shape)}")
        return torch.batch_norm_update_stats(x.flatten(0, 1), *self.running(), self.momentum)
