"""Handlers that turn convolutions, pools, norms and other layers over channels and pixels into nodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from steadyspike.deploy.dispatch import handles
from steadyspike.deploy.graph import Node
from steadyspike.deploy.trace import Recorder, Value


def numbers(value: Any, n: int = 2) -> list[int]:
    """Returns one number per axis of a window."""
    if isinstance(value, (list, tuple)):
        return [int(v) for v in value] * (n if len(value) == 1 else 1)
    return [int(value)] * n


def _folded(rec: Recorder, x: Tensor, what: str) -> Value:
    """Returns the value of ``x`` if it is [N, C, ...] with time folded into the batch.

    Raises an error for any other.
    """
    value = rec.need(x)
    if value.layout not in ("folded", "still"):
        raise rec.refuse(f"{what} takes [N, C, ...] with time folded into the batch, got {list(x.shape)}")
    return value


def _axes(rec: Recorder, x: Tensor) -> int:
    """Returns how many axes of pixels a value has: 1 or 2."""
    axes = len(_folded(rec, x, "a pooling").shape) - 1
    if axes not in (1, 2):
        raise rec.refuse(f"fold supports poolings of [N, C, L] and [N, C, H, W], got {list(x.shape)}")
    return axes


@handles("conv1d", "conv2d")
def _conv(
    rec: Recorder, x: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Any = 1, padding: Any = 0,
    dilation: Any = 1, groups: int = 1, *, out: Tensor,
) -> None:  # fmt: skip
    value = _synapse_input(rec, x, weight)
    n = weight.ndim - 2
    wide = [d * (k - 1) for d, k in zip(numbers(dilation, n), weight.shape[2:])]
    if padding == "same" and any(size % 2 for size in wide):
        raise rec.refuse("padding='same' of an even kernel pads the two sides differently; fold pads them equally")
    named = {"valid": 0, "same": [size // 2 for size in wide]}
    options = {
        "stride": numbers(stride, n),
        "padding": numbers(named[padding] if isinstance(padding, str) else padding, n),
        "dilation": numbers(dilation, n),
        "groups": groups,
    }
    tensors = {"weight": weight} if bias is None else {"weight": weight, "bias": bias}
    rec.node("conv", out, value.layout, value.name, name=rec.where, options=options, tensors=tensors)


@handles("conv_transpose1d", "conv_transpose2d")
def _conv_transpose(
    rec: Recorder, x: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Any = 1, padding: Any = 0,
    output_padding: Any = 0, groups: int = 1, dilation: Any = 1, *, out: Tensor,
) -> None:  # fmt: skip
    value = _synapse_input(rec, x, weight)
    n = weight.ndim - 2
    given = {"stride": stride, "padding": padding, "output_padding": output_padding, "dilation": dilation}
    options: dict[str, Any] = {name: numbers(v, n) for name, v in given.items()}
    tensors = {"weight": weight} if bias is None else {"weight": weight, "bias": bias}
    options["groups"] = groups
    rec.node("conv_transpose", out, value.layout, value.name, name=rec.where, options=options, tensors=tensors)


def _synapse_input(rec: Recorder, x: Tensor, weight: Tensor) -> Value:
    if rec.find(weight) is not None:
        raise rec.refuse("a convolution takes fixed weights, and these depend on the input")
    return _folded(rec, x, "a convolution")


@handles("batch_norm")
def _batch_norm(
    rec: Recorder, x: Tensor, mean: Tensor | None, var: Tensor | None, weight: Tensor | None = None,
    bias: Tensor | None = None, training: bool = False, momentum: float = 0.1, eps: float = 1e-5, *, out: Tensor,
) -> None:  # fmt: skip
    if training or mean is None or var is None:
        raise rec.refuse("a batch norm without running statistics cannot be folded: its output depends on the batch")
    value = _folded(rec, x, "torch's batch norm")
    gain = (torch.ones_like(var) if weight is None else weight) / torch.sqrt(var + eps)
    shift = -mean * gain if bias is None else bias - mean * gain
    rec.node("affine", out, value.layout, value.name, name=rec.where, tensors={"gain": gain, "bias": shift})


@handles("group_norm")
def _group_norm(
    rec: Recorder, x: Tensor, num_groups: int, weight: Tensor | None = None, bias: Tensor | None = None,
    eps: float = 1e-5, *, out: Tensor,
) -> None:  # fmt: skip
    # Its statistics depend on the sample, so it cannot become a weight: it is kept and computes with real numbers.
    value = _folded(rec, x, "a group norm")
    tensors = {name: t for name, t in (("weight", weight), ("bias", bias)) if t is not None}
    options = {"groups": int(num_groups), "eps": float(eps)}
    rec.node("group_norm", out, value.layout, value.name, name=rec.where, options=options, tensors=tensors)


@handles("layer_norm")
def _layer_norm(
    rec: Recorder, x: Tensor, normalized_shape: Sequence[int], weight: Tensor | None = None,
    bias: Tensor | None = None, eps: float = 1e-5, *, out: Tensor,
) -> None:  # fmt: skip
    value = rec.need(x)
    over = [int(size) for size in normalized_shape]
    if len(over) > len(value.shape):
        raise rec.refuse("a layer norm over time or batch mixes samples")
    tensors = {name: t for name, t in (("weight", weight), ("bias", bias)) if t is not None}
    options = {"over": over, "eps": float(eps)}
    rec.node("layer_norm", out, value.layout, value.name, name=rec.where, options=options, tensors=tensors)


@handles("avg_pool1d", "avg_pool2d")
def _avg_pool(
    rec: Recorder, x: Tensor, kernel_size: Any, stride: Any = None, padding: Any = 0, ceil_mode: bool = False,
    count_include_pad: bool = True, divisor_override: int | None = None, *, out: Tensor,
) -> None:  # fmt: skip
    if divisor_override is not None:
        raise rec.refuse("fold does not support divisor_override of an average pooling")
    n = _axes(rec, x)
    size = numbers(kernel_size, n)
    _pool(rec, "avg_pool", x, out, kernel_size=size, stride=numbers(stride, n) if stride not in (None, []) else size,
          padding=numbers(padding, n), ceil_mode=ceil_mode, count_include_pad=count_include_pad)  # fmt: skip


@handles("max_pool1d", "max_pool2d")
def _max_pool(
    rec: Recorder, x: Tensor, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1,
    ceil_mode: bool = False, return_indices: bool = False, *, out: Tensor,
) -> None:  # fmt: skip
    n = _axes(rec, x)
    size = numbers(kernel_size, n)
    _pool(rec, "max_pool", x, out, kernel_size=size, stride=numbers(stride, n) if stride not in (None, []) else size,
          padding=numbers(padding, n), dilation=numbers(dilation, n), ceil_mode=ceil_mode)  # fmt: skip


@handles("adaptive_avg_pool1d", "adaptive_avg_pool2d")
def _adaptive_avg(rec: Recorder, x: Tensor, output_size: Any, *, out: Tensor) -> None:
    _pool(rec, "adaptive_avg_pool", x, out, output_size=list(out.shape[-_axes(rec, x) :]))


@handles("adaptive_max_pool1d", "adaptive_max_pool2d")
def _adaptive_max(rec: Recorder, x: Tensor, output_size: Any, return_indices: bool = False, *, out: Tensor) -> None:
    _pool(rec, "adaptive_max_pool", x, out, output_size=list(out.shape[-_axes(rec, x) :]))


def _pool(rec: Recorder, op: str, x: Tensor, out: Tensor, **options: Any) -> None:
    value = _folded(rec, x, "a pooling")
    rec.node(op, out, value.layout, value.name, options=options)


@handles("interpolate")
def _upsample(
    rec: Recorder, x: Tensor, size: Any = None, scale_factor: Any = None, mode: str = "nearest",
    align_corners: bool | None = None, recompute_scale_factor: bool | None = None, antialias: bool = False, *,
    out: Tensor,
) -> None:  # fmt: skip
    if mode not in ("nearest", "bilinear", "linear") or recompute_scale_factor or antialias:
        raise rec.refuse(f"fold supports nearest, linear and bilinear upsampling without antialias, not {mode!r}")
    options: dict[str, Any] = {}
    if scale_factor is None:
        options["size"] = list(out.shape[2:])
    else:
        many = isinstance(scale_factor, (list, tuple))
        options["scale_factor"] = [float(f) for f in scale_factor] if many else float(scale_factor)
    if mode != "nearest":
        options |= {"mode": mode, "align_corners": bool(align_corners)}
    _pool(rec, "upsample", x, out, **options)


@handles("pad")
def _pad(
    rec: Recorder, x: Tensor, pad: Sequence[int], mode: str = "constant", value: float | None = None, *, out: Tensor
) -> None:
    source = rec.need(x) if mode == "constant" else _folded(rec, x, f"{mode} padding")
    if mode == "constant" and value not in (None, 0):
        raise rec.refuse(f"fold supports padding by zeros, reflect, replicate and circular; this one is by {value}")
    if len(pad) > 2 * (len(source.shape) - 1):
        raise rec.refuse("padding of channels or of the batch cannot be folded")
    rec.node("pad", out, source.layout, source.name, options={"sides": [int(n) for n in pad], "mode": mode})


@handles("pixel_shuffle")
def _pixel_shuffle(rec: Recorder, x: Tensor, upscale_factor: int, *, out: Tensor) -> None:
    """Moves [C r r, H, W] to [C, H r, W r]: views and a permutation."""
    value, r = _folded(rec, x, "a pixel shuffle"), int(upscale_factor)
    channels, height, width = value.shape[0] // (r * r), *value.shape[1:]
    apart, moved = (channels, r, r, height, width), (channels, height, r, width, r)
    name = rec.graph.add(Node(f"{value.name}:apart", "reshape", (value.name,), apart, value.timed))
    order = {"axes": [0, 3, 1, 4, 2]}
    name = rec.graph.add(Node(f"{value.name}:moved", "permute", (name,), moved, value.timed, order))
    rec.node("reshape", out, value.layout, name)
