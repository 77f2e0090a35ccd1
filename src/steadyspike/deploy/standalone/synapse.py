"""Convolutions and linear layers as the rows of weights that a spike adds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from steadyspike.deploy.errors import CannotFold
from steadyspike.deploy.graph import Node
from steadyspike.deploy.standalone.program import Array, Edge, Synapse, Value, grid_of, natural_index, strides_of

if TYPE_CHECKING:
    from steadyspike.deploy.standalone.lower import _Lowering


def synapse(low: _Lowering, node: Node) -> list[Synapse | Edge]:
    """The terms of a convolution or linear layer: one per input of a concatenation, so that nothing is copied."""
    source = low.graph[node.inputs[0]]
    if source.name in low.values:
        value = low.values[source.name]
        return [_term(low, node, value, low.constants.weight(node, value.joins), 0)]
    terms: list[Synapse | Edge] = []
    start = 0
    for i, name in enumerate(source.inputs):
        value = low.value(name)
        channels = low.graph[name].shape[-1 if node.op == "linear" else 0]
        weight = low.constants.weight(node, value.joins)[:, start : start + channels]
        terms.append(_term(low, node, value, weight, i))
        start += channels
    return terms


def reads_parts(node: Node, concat: Node) -> bool:
    """Returns True if a layer can read the inputs of a concatenation one by one."""
    if node.op == "conv":
        return concat.options["axis"] == 0 and node.options["groups"] == 1
    return node.op == "linear" and concat.options["axis"] == len(concat.shape) - 1 and len(concat.shape) == 1


def _term(low: _Lowering, node: Node, value: Value, weight: Array, part: int) -> Synapse:
    name = node.name if part == 0 else f"{node.name}:{part + 1}"
    if node.op == "conv":
        return _conv(low, node, value, weight, name)
    if value.index.ndim == 1:
        return _linear(low, value, weight, name)
    return _token_linear(low, node, value, weight, name)


def _conv(low: _Lowering, node: Node, value: Value, weight: Array, name: str) -> Synapse:
    o = node.options
    if weight.ndim == 3:  # over one axis: one row of pixels
        weight = weight[:, :, None]
        two = {key: (0 if key == "padding" else 1, _first(o[key])) for key in ("stride", "padding", "dilation")}
    else:
        two = {key: _pair(node, o[key]) for key in ("stride", "padding", "dilation")}
    size = grid_of(value.index.shape)
    strides = strides_of(value.index.reshape(size))
    dense = value.buffer.kind not in ("bits", "counts")
    if strides is None or strides[0] or not (dense or _is_natural(value)):
        value = low.copied(node, value)
        strides = strides_of(value.index.reshape(size))
    assert strides is not None
    _, per_group, high, wide = weight.shape
    groups = o["groups"]
    outs = weight.shape[0] // groups
    # rows[ky, kx, group, input channel, output channel of the group]
    rows = weight.reshape(groups, outs, per_group, high, wide).transpose(3, 4, 0, 2, 1)
    return Synapse(
        name, value.buffer, (strides[1][0], strides[1][1], strides[1][2]), size, (high, wide), two["stride"],
        two["padding"], two["dilation"], groups, np.ascontiguousarray(rows).reshape(-1, outs),
    )  # fmt: skip


def _linear(low: _Lowering, value: Value, weight: Array, name: str) -> Synapse:
    """For a vector: the kernel covers the buffer, and weights are put in the order in which it is stored."""
    buffer = value.buffer
    channels, high, wide = buffer.grid
    rows = np.zeros((buffer.size, weight.shape[0]))
    rows[value.index] = weight.T
    if buffer.kind == "input":  # stored as [C][H][W]
        channels, high, wide = buffer.size, 1, 1
    strides = (1, wide * channels, channels)
    return Synapse(name, buffer, strides, (channels, high, wide), (high, wide), (1, 1), (0, 0), (1, 1), 1, rows)


def _token_linear(low: _Lowering, node: Node, value: Value, weight: Array, name: str) -> Synapse:
    """For a linear layer over the last of several axes: a 1 x 1 convolution with that axis as its channels."""
    features = value.index.shape[-1]
    as_image = Value(value.buffer, np.moveaxis(value.index, -1, 0).reshape(features, 1, -1), value.joins)
    return _conv(low, _one_by_one(node), as_image, weight[:, :, None, None], name)


def _one_by_one(node: Node) -> Node:
    options = {"stride": [1, 1], "padding": [0, 0], "dilation": [1, 1], "groups": 1}
    return Node(node.name, "conv", node.inputs, node.shape, node.timed, options, node.tensors)


def _is_natural(value: Value) -> bool:
    return np.array_equal(value.index.reshape(-1), natural_index(value.index.shape).reshape(-1)) and (
        value.buffer.grid[0] == value.index.shape[0]
    )


def _first(option: object) -> int:
    return int(option[0]) if isinstance(option, (list, tuple)) else int(option)  # type: ignore[call-overload]


def _pair(node: Node, option: object) -> tuple[int, int]:
    if isinstance(option, str):
        raise CannotFold(f"{node.name}: padding {option!r} cannot be written in C here; give it as numbers")
    if isinstance(option, (list, tuple)):
        return int(option[0]), int(option[-1])
    return int(option), int(option)  # type: ignore[call-overload]
