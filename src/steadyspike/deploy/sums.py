"""Sums instead of averages: how many spikes an averaged value combines, also if windows overlap or differ in size."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from steadyspike.deploy.graph import Graph, Node
from steadyspike.deploy.ops import OPS, per_sample


def summed(node: Node, graph: Graph, inputs: Sequence[Tensor], steps: int) -> Tensor:
    """Returns the value of a node with sums instead of averages: an average becomes the sum of its inputs.

    Other operations do not change.
    """
    x = inputs[0]
    if node.op == "time_mean":
        return x.sum(0)
    if node.op == "mean":
        joins = math.prod(node.options["of"]) / math.prod(node.shape)
        return OPS["mean"].compute(node, x) * joins
    if node.op == "avg_pool":
        o, flat = node.options, len(node.options["kernel_size"]) == 1
        # A pool over one axis is one over two axes of which the first has one pixel.
        kernel, stride, padding = (
            [first, *o[name]] if flat else o[name]
            for name, first in (("kernel_size", 1), ("stride", 1), ("padding", 0))
        )

        def pool(folded: Tensor) -> Tensor:
            image = folded.unsqueeze(-2) if flat else folded
            sums = F.avg_pool2d(image, kernel, stride, padding, o["ceil_mode"], divisor_override=1)
            return sums.squeeze(-2) if flat else sums

        return per_sample(pool, x, node.timed)
    if node.op == "adaptive_avg_pool":
        windows = [adaptive_windows(n, m) for n, m in zip(graph[node.inputs[0]].shape[-2:], node.shape[-2:])]
        high, wide = (torch.tensor(sizes, dtype=x.dtype, device=x.device) for sizes in windows)
        return OPS["adaptive_avg_pool"].compute(node, x) * high[:, None] * wide
    return OPS[node.op].compute(node, *inputs, *((steps,) if node.op == "repeat" else ()))


def adaptive_windows(size: int, out: int) -> list[int]:
    """Returns the lengths of the windows of torch's adaptive pooling from ``size`` to ``out`` values."""
    return [-(-(i + 1) * size // out) - i * size // out for i in range(out)]
