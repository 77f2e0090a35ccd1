"""What each node of a `Graph` computes, in plain PyTorch; runtimes and exports are compared with this definition.

A function takes the node and the values of its inputs. Values with a time axis are [T, B, ...], others [B, ...].
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from steadyspike.core.reference_scan import lif_step, per_channel
from steadyspike.core.spec import RESETS, Reset, ScanSpec
from steadyspike.deploy.graph import Node

# Made once, because torch.compile cannot trace the construction of a ScanSpec.
SPECS = {
    (kind, strict, decay): ScanSpec("as", reset=Reset(kind), strict=strict, decay_input=decay)
    for kind in RESETS
    for strict in (False, True)
    for decay in (False, True)
}
Compute = Callable[..., Tensor]


class Op(NamedTuple):
    """compute(node, *values)

    ``linear``: f(c x) = c f(x) for every number c
    ``monotone``: only for c >= 0
    """

    compute: Compute
    linear: bool = False
    monotone: bool = False


def per_sample(function: Callable[[Tensor], Tensor], x: Tensor, timed: bool) -> Tensor:
    """Calls ``function`` of [N, ...] on all time steps at once."""
    return function(x.flatten(0, 1)).unflatten(0, x.shape[:2]) if timed else function(x)


def lead(node: Node) -> int:
    """Returns the number of axes before the sample's own."""
    return 2 if node.timed else 1


def over_channels(node: Node, constant: Tensor, last: bool = False) -> Tensor:
    """Reshapes a constant [C], or [T, C] per step, so that it broadcasts over the node's value.

    Channels are the sample's first axis; with ``last`` its last axis (a linear layer's output).
    """
    axes = len(node.shape) - 1
    tail = [1] * axes if not last else []
    front = [1] * axes if last else []
    if constant.ndim == 1:
        return constant.view(*front, -1, *tail)
    return constant.view(constant.shape[0], 1, *front, -1, *tail)


def gained(node: Node, y: Tensor, last: bool) -> Tensor:
    """Returns the output of a synapse or norm with its gain and bias, [C] or [T, C]."""
    for what in ("gain", "bias"):
        constant = node.tensors.get(what)
        if constant is None:
            continue
        steps = constant if constant.ndim == 1 else constant[: y.shape[0]]  # [C] is the same at every step
        y = y * over_channels(node, steps, last) if what == "gain" else y + over_channels(node, steps, last)
    return y


CONVS: dict[int, Callable[..., Tensor]] = {3: F.conv1d, 4: F.conv2d}


def inner_bias(node: Node) -> Tensor | None:
    """Returns the bias that a convolution or linear layer adds itself.

    Returns None if a gain or a bias per step is applied first.
    """
    bias = node.tensors.get("bias")
    return bias if bias is not None and bias.ndim == 1 and "gain" not in node.tensors else None


def conv(node: Node, x: Tensor) -> Tensor:
    o, weight, inside = node.options, node.tensors["weight"], inner_bias(node)

    def apply(folded: Tensor) -> Tensor:
        function = CONVS[weight.ndim]
        return function(folded, weight, inside, o["stride"], o["padding"], o["dilation"], o["groups"])

    y = per_sample(apply, x, node.timed)
    return y if inside is node.tensors.get("bias") else gained(node, y, last=False)


def linear(node: Node, x: Tensor) -> Tensor:
    inside = inner_bias(node)
    y = F.linear(x, node.tensors["weight"], inside)
    return y if inside is node.tensors.get("bias") else gained(node, y, last=True)


def affine(node: Node, x: Tensor) -> Tensor:
    """Computes gain * x + bias, per channel or per step and channel; [C] or [T, C]."""
    return gained(node, x, last=False).to(x.dtype)  # norms and thresholds stay in float32 in bfloat16 models


def weighted_sum(node: Node, *values: Tensor) -> Tensor:
    """Sums the inputs, each times its edge's constant ``edge<i>`` (none: 1); a constant ``offset`` may be added."""
    total: Tensor | None = None
    for i, value in enumerate(values):
        edge = node.tensors.get(f"edge{i}")
        term = value if edge is None else value * edge
        total = term if total is None else total + term
    assert total is not None
    offset = node.tensors.get("offset")
    return (total if offset is None else total + offset).to(values[0].dtype)


def lif(node: Node, x: Tensor, u: Tensor | None = None) -> Tensor:
    return lif_steps(node, x, u)[0]


def lif_steps(node: Node, x: Tensor, u: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Returns output [T, B, ...] and U[T] of a neuron layer from U[0] = ``u`` (None: its initial potential).

    emit: ``"spikes"``: S in {0, 1}; ``"scaled"``: V S; ``"potential"``: M (a readout)
    """
    o, dtype = node.options, torch.promote_types(x.dtype, torch.float32)
    spec = SPECS[o["reset"], o["strict"], o["decay_input"]]
    v, a = (per_channel(node.tensors[name].to(dtype), x.ndim - 1) for name in ("threshold", "leak"))
    if u is None:
        u = initial_potential(node, x)
    u, outs = u.to(dtype), []
    for x_t in x.unbind(0):
        step = lif_step(x_t.to(dtype), u, v, a, spec)
        out = step.m if o["emit"] == "potential" else v * step.s if o["emit"] == "scaled" else step.s
        outs.append(out.to(x.dtype))
        u = step.u
    return torch.stack(outs), u


def initial_potential(node: Node, x: Tensor) -> Tensor:
    """Returns U[0] of a neuron layer for input [T, B, ...], expanded to [B, ...]."""
    start = node.tensors["start"]
    start = start if start.ndim > 1 else per_channel(start, x.ndim - 1)
    return start.expand(x.shape[1:])


def _mean(node: Node, x: Tensor) -> Tensor:
    return x.mean([axis + x.ndim - len(node.options["of"]) for axis in node.options["axes"]], node.options["keep"])


def _pool(function: Callable[..., Tensor], *names: str) -> Compute:
    def compute(node: Node, x: Tensor) -> Tensor:
        options = {name: node.options[name] for name in names}
        return per_sample(lambda folded: function(folded, **options), x, node.timed)

    return compute


POOLS: dict[str, dict[int, Callable[..., Tensor]]] = {  # by the number of axes that a window has
    "avg_pool": {1: F.avg_pool1d, 2: F.avg_pool2d},
    "max_pool": {1: F.max_pool1d, 2: F.max_pool2d},
    "adaptive_avg_pool": {1: F.adaptive_avg_pool1d, 2: F.adaptive_avg_pool2d},
}


def _windows(op: str, size: str, *names: str) -> Compute:
    """Computes a pooling over windows of one or two axes; the length of the option ``size`` is their number."""

    def compute(node: Node, x: Tensor) -> Tensor:
        function = POOLS[op][len(node.options[size])]
        return _pool(function, size, *names)(node, x)

    return compute


def _adaptive_max_pool(node: Node, x: Tensor) -> Tensor:
    """The largest value of each window, axis by axis; ONNX has no such pool if the windows have different lengths."""
    for axis, count in enumerate(node.options["output_size"], x.ndim - len(node.options["output_size"])):
        size, windows = x.shape[axis], torch.arange(count, device=x.device)
        starts, ends = windows * size // count, -(-(windows + 1) * size // count)
        places = torch.arange(-(-size // count) + 1, device=x.device)  # as long as the longest window can be
        inside = torch.minimum(starts[:, None] + places, ends[:, None] - 1)  # shorter ones repeat their last value
        x = x.index_select(axis, inside.flatten()).unflatten(axis, inside.shape).amax(axis + 1)
    return x


def conv_transpose(node: Node, x: Tensor) -> Tensor:
    o, weight = node.options, node.tensors["weight"]

    def apply(folded: Tensor) -> Tensor:
        function = F.conv_transpose1d if weight.ndim == 3 else F.conv_transpose2d
        return function(
            folded, weight, None, o["stride"], o["padding"], o["output_padding"], o["groups"], o["dilation"]
        )

    return gained(node, per_sample(apply, x, node.timed), last=False)


def _upsample(node: Node, x: Tensor) -> Tensor:
    mode = node.options.get("mode", "nearest")
    corners = {} if mode == "nearest" else {"align_corners": node.options["align_corners"]}
    size = node.options.get("size")
    target = {"scale_factor": node.options["scale_factor"]} if size is None else {"size": tuple(size)}
    return per_sample(lambda folded: F.interpolate(folded, mode=mode, **target, **corners), x, node.timed)


def _pad(node: Node, x: Tensor) -> Tensor:
    return per_sample(lambda folded: F.pad(folded, node.options["sides"], node.options["mode"]), x, node.timed)


def _group_norm(node: Node, x: Tensor) -> Tensor:
    o, t = node.options, node.tensors
    return per_sample(lambda y: F.group_norm(y, o["groups"], t.get("weight"), t.get("bias"), o["eps"]), x, node.timed)


def _layer_norm(node: Node, x: Tensor) -> Tensor:
    o, t = node.options, node.tensors
    return F.layer_norm(x, o["over"], t.get("weight"), t.get("bias"), o["eps"])


def _reshape(node: Node, x: Tensor) -> Tensor:
    return x.reshape(*x.shape[: lead(node)], *node.shape)


def _permute(node: Node, x: Tensor) -> Tensor:
    n = lead(node)
    return x.permute(*range(n), *(axis + n for axis in node.options["axes"]))


def _slice(node: Node, x: Tensor) -> Tensor:
    return x.narrow(node.options["axis"] + lead(node), node.options["start"], node.options["length"])


OPS: dict[str, Op] = {
    "repeat": Op(lambda node, x, steps: x.expand(steps, *x.shape), linear=True),
    "conv": Op(conv),
    "linear": Op(linear),
    "affine": Op(affine),
    "sum": Op(weighted_sum),
    "multiply": Op(lambda node, a, b: a * b),
    "matmul": Op(lambda node, a, b: a @ b),
    "complement": Op(lambda node, x: 1 - x),
    "spikes": Op(lambda node, x: (x > 0).to(x.dtype)),
    "lif": Op(lif),
    "avg_pool": Op(
        _windows("avg_pool", "kernel_size", "stride", "padding", "ceil_mode", "count_include_pad"), linear=True
    ),
    "max_pool": Op(
        _windows("max_pool", "kernel_size", "stride", "padding", "dilation", "ceil_mode"), monotone=True
    ),
    "adaptive_avg_pool": Op(_windows("adaptive_avg_pool", "output_size"), linear=True),
    "adaptive_max_pool": Op(_adaptive_max_pool, monotone=True),
    "upsample": Op(_upsample, linear=True),
    "pad": Op(_pad, linear=True),
    "conv_transpose": Op(conv_transpose),
    "group_norm": Op(_group_norm),
    "layer_norm": Op(_layer_norm),
    "mean": Op(_mean, linear=True),
    "reshape": Op(_reshape, linear=True),
    "permute": Op(_permute, linear=True),
    "slice": Op(_slice, linear=True),
    "concat": Op(lambda node, *xs: torch.cat(xs, node.options["axis"] + lead(node))),
    "time_mean": Op(lambda node, x: x.mean(0), linear=True),
    "time_sum": Op(lambda node, x: x.sum(0), linear=True),
    "relu": Op(lambda node, x: F.relu(x), monotone=True),
}  # fmt: skip
