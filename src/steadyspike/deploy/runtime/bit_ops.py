"""Operations on bits that are not layers: a max-pool is an OR, an average counts spikes, a reshape is a view."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from steadyspike.deploy.graph import Node
from steadyspike.deploy.runtime.native_layer import window_means
from steadyspike.deploy.runtime.values import Bits, Value, from_memory


def on_bits(node: Node, inputs: list[Bits]) -> Value:
    bits = inputs[0]
    if node.op == "reshape":
        return bits.viewed(node.shape)
    if node.op == "concat":
        return Bits(torch.cat([i.words for i in inputs], -1), node.shape)
    if node.op == "max_pool":
        return Bits(_any_in_window(bits.words, node), node.shape)
    if node.op == "avg_pool":
        o = node.options
        kernel, stride, padding = ((o[name][0], o[name][1]) for name in ("kernel_size", "stride", "padding"))
        means = window_means(bits.words, bits.shape[0], kernel, stride, padding, o["count_include_pad"])
        return from_memory(means, node.shape)
    means = window_means(bits.words, bits.shape[0], (bits.shape[1], bits.shape[2]))  # over all pixels
    return from_memory(means, (bits.shape[0], 1, 1)).flatten(2).unflatten(2, node.shape)


def _any_in_window(words: Tensor, node: Node) -> Tensor:
    """The OR of the words [B, T, H, W, n] of each window."""
    o = node.options
    (kh, kw), (sh, sw), (ph, pw), (dh, dw) = (o[name] for name in ("kernel_size", "stride", "padding", "dilation"))
    rows, columns = node.shape[1:]
    if ph or pw:
        words = F.pad(words, (0, 0, pw, pw, ph, ph))
    out: Tensor | None = None
    for i in range(kh):
        for j in range(kw):
            top, left = i * dh, j * dw
            part = words[:, :, top : top + (rows - 1) * sh + 1 : sh, left : left + (columns - 1) * sw + 1 : sw]
            out = part.clone(memory_format=torch.contiguous_format) if out is None else out.bitwise_or_(part)
    assert out is not None
    return out
