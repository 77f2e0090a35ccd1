"""Handlers that turn a traced torch function into a node: one small function each, named after the torch function."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from steadyspike.deploy.dispatch import handles
from steadyspike.deploy.graph import Node
from steadyspike.deploy.tensor_axes import LEADING, is_timed, sample_shape
from steadyspike.deploy.trace import Recorder, Value


def _number(thing: Any) -> bool:
    return isinstance(thing, (int, float)) and not isinstance(thing, bool)


@handles("contiguous", "clone", "detach", "to", "float", "double", "type_as", "data", "identity", "requires_grad_")
def _same(rec: Recorder, x: Tensor, *args: Any, out: Tensor, **kwargs: Any) -> None:
    value = rec.need(x)
    if not out.is_floating_point():
        raise rec.refuse(f"a conversion to {str(out.dtype).removeprefix('torch.')} rounds, which fold does not support")
    rec.remember(out, value.name, value.layout)


@handles("dropout", "dropout1d", "dropout2d", "dropout3d", "feature_dropout", "alpha_dropout", "feature_alpha_dropout")
def _dropout(
    rec: Recorder, x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False, *, out: Tensor
) -> None:
    if training and p > 0:
        raise rec.refuse("dropout is active in evaluation; call it with training=self.training")
    _same(rec, x, out=out)


@handles("linear")
def _linear(rec: Recorder, x: Tensor, weight: Tensor, bias: Tensor | None = None, *, out: Tensor) -> None:
    value = rec.need(x)
    if rec.find(weight) is not None or not value.shape:
        raise rec.refuse("a linear layer takes [..., features] with fixed weights")
    tensors = {"weight": weight} if bias is None else {"weight": weight, "bias": bias}
    rec.node("linear", out, value.layout, value.name, name=rec.where, tensors=tensors)


def _as_timed(rec: Recorder, value: Value, like: Value) -> str:
    """Returns the name of ``value``, repeated over time if ``like`` has a time axis and ``value`` does not."""
    if value.timed == like.timed:
        return value.name
    node = rec.graph[value.name]
    return rec.graph.add(Node(f"{node.name}:repeat", "repeat", (node.name,), node.shape, True))


def _constant(rec: Recorder, c: Any, value: Value) -> Tensor:
    """Returns a number or tensor that broadcasts with ``value``, shaped for one sample."""
    t = torch.as_tensor(c, dtype=value.tensor.dtype).detach()
    if t.numel() == 1:
        return t.reshape([1] * len(value.shape))
    t = t.reshape([1] * (value.tensor.ndim - t.ndim) + list(t.shape))
    if any(size != 1 for size in t.shape[: value.lead]):
        raise rec.refuse("a constant that differs over time or batch cannot be folded")
    return t.reshape(t.shape[value.lead :])


def _sum(rec: Recorder, out: Tensor, terms: Sequence[tuple[Any, float]]) -> None:
    """Adds a node for out = sum of factor * term over the terms, of which at least one is a traced value."""
    recorded = [(v, f) for v, f in ((rec.find(term), factor) for term, factor in terms) if v is not None]
    like = next((v for v, _ in recorded if v.timed), recorded[0][0])
    tensors: dict[str, Tensor] = {}
    names = []
    for i, (value, factor) in enumerate(recorded):
        names.append(_as_timed(rec, value, like))
        if factor != 1:
            tensors[f"edge{i}"] = _constant(rec, factor, like)
    for term, factor in terms:
        if rec.find(term) is None:
            offset = _constant(rec, term, like) * factor
            tensors["offset"] = tensors["offset"] + offset if "offset" in tensors else offset
    layout = like.layout
    if sample_shape(out.shape, layout) != like.shape and len(recorded) == 1:
        raise rec.refuse(
            f"a constant widens the value from {list(like.shape)}; fold supports only constants that broadcast to it"
        )
    rec.node("sum", out, layout, *names, tensors=tensors)


@handles("add", "__add__", "__radd__", "__iadd__", "add_")
def _add(rec: Recorder, a: Any, b: Any, *, alpha: float = 1, out: Tensor) -> None:
    _sum(rec, out, [(a, 1.0), (b, float(alpha))])


@handles("sub", "__sub__", "__isub__", "sub_", "subtract")
def _sub(rec: Recorder, a: Any, b: Any, *, alpha: float = 1, out: Tensor) -> None:
    if _number(a) and a == 1 and alpha == 1:
        value = rec.need(b)
        rec.node("complement", out, value.layout, value.name)
    else:
        _sum(rec, out, [(a, 1.0), (b, -float(alpha))])


@handles("rsub", "__rsub__")
def _rsub(rec: Recorder, a: Any, b: Any, *, out: Tensor) -> None:
    _sub(rec, b, a, out=out)


@handles("neg", "__neg__")
def _neg(rec: Recorder, a: Tensor, *, out: Tensor) -> None:
    _sum(rec, out, [(a, -1.0)])


@handles("mul", "__mul__", "__rmul__", "__imul__", "mul_", "multiply")
def _mul(rec: Recorder, a: Any, b: Any, *, out: Tensor) -> None:
    first, second = rec.find(a), rec.find(b)
    if first is not None and second is not None:
        like = first if first.timed else second
        rec.node("multiply", out, like.layout, _as_timed(rec, first, like), _as_timed(rec, second, like))
        return
    value, constant = (first, b) if first is not None else (second, a)
    assert value is not None
    edge = _constant(rec, constant, value)
    rec.node("sum", out, value.layout, value.name, tensors={"edge0": edge})


@handles("div", "__truediv__", "true_divide", "divide", "div_", "__itruediv__")
def _div(rec: Recorder, a: Any, b: Any, *, out: Tensor) -> None:
    value = rec.find(a)
    if value is None or rec.find(b) is not None:
        raise rec.refuse("a division by a value that depends on the input cannot be folded")
    rec.node("sum", out, value.layout, value.name, tensors={"edge0": 1 / _constant(rec, b, value)})


@handles("matmul", "__matmul__", "bmm")
def _matmul(rec: Recorder, a: Any, b: Any, *, out: Tensor) -> None:
    first, second = rec.find(a), rec.find(b)
    if first is not None and second is not None:
        if first.layout != second.layout:
            raise rec.refuse("a matrix product takes two values with time and batch on the same axes")
        rec.node("matmul", out, first.layout, first.name, second.name)
    elif first is not None and isinstance(b, Tensor) and b.ndim == 2:
        rec.node("linear", out, first.layout, first.name, tensors={"weight": b.t()})
    else:
        raise rec.refuse("a matrix product with a constant needs the constant [in, out] on the right")


@handles("relu", "relu_")
def _relu(rec: Recorder, x: Tensor, inplace: bool = False, *, out: Tensor) -> None:
    value = rec.need(x)
    rec.node("relu", out, value.layout, value.name)


@handles("mean")
def _mean(rec: Recorder, x: Tensor, dim: Any = None, keepdim: bool = False, *, out: Tensor, **kwargs: Any) -> None:
    _reduce(rec, x, dim, keepdim, out, total=False)


@handles("sum")
def _total(rec: Recorder, x: Tensor, dim: Any = None, keepdim: bool = False, *, out: Tensor, **kwargs: Any) -> None:
    _reduce(rec, x, dim, keepdim, out, total=True)


def _reduce(rec: Recorder, x: Tensor, dim: Any, keepdim: bool, out: Tensor, *, total: bool) -> None:
    value = rec.need(x)
    if dim is None:
        raise rec.refuse("a mean or sum over everything mixes the samples of a batch")
    axes = sorted(d % x.ndim for d in (dim if isinstance(dim, (list, tuple)) else [dim]))
    count = math.prod(x.shape[d] for d in axes)
    layout, name = value.layout, value.name
    if axes == [0] and layout == "frames" and not keepdim:
        op = "time_sum" if total else "time_mean"  # a sum has no factor T, so it is right for every number of steps
        rec.remember(out, rec.graph.add(Node(f"{name}:{op}", op, (name,), value.shape, False)), "still")
        return
    elif min(axes) < value.lead:
        raise rec.refuse("a mean or sum over time or batch together with other axes cannot be folded")
    else:
        options = {"axes": [d - value.lead for d in axes], "keep": bool(keepdim), "of": list(value.shape)}
        shape = sample_shape(out.shape, layout)
        name = rec.graph.add(Node(f"{name}:mean", "mean", (name,), shape, value.timed, options))
    rec.remember(out, name, layout)
    if total:
        edge = torch.full([1] * len(sample_shape(out.shape, layout)), float(count), dtype=x.dtype)
        rec.node("sum", out, layout, name, tensors={"edge0": edge})


@handles("flatten", "unflatten", "reshape", "view", "squeeze", "unsqueeze", "view_as", "reshape_as", "_unsafe_view")
def _view(rec: Recorder, x: Tensor, *args: Any, out: Tensor, **kwargs: Any) -> None:
    value = rec.need(x)
    layout = rec.layout.of_view(out.shape, value.timed)
    if layout is None or x.numel() != out.numel():
        raise rec.refuse(f"a view from {list(x.shape)} to {list(out.shape)} moves time or batch away from the front")
    if sample_shape(out.shape, layout) == value.shape:
        rec.remember(out, value.name, layout)
    else:
        rec.node("reshape", out, layout, value.name)
    if layout == "still1" and rec.layout.steps == 1:  # with one step, a new first axis is the axis of time
        view = rec.need(out)
        rec.remember(out, _as_timed(rec, view, Value("", "frames", out)), "frames")


@handles("permute")
def _permute(rec: Recorder, x: Tensor, *dims: Any, out: Tensor, **kwargs: Any) -> None:
    order = kwargs.get("dims", dims[0] if len(dims) == 1 and isinstance(dims[0], (list, tuple)) else dims)
    _reorder(rec, x, [d % x.ndim for d in order], out)


@handles("transpose", "swapaxes", "swapdims", "transpose_")
def _transpose(rec: Recorder, x: Tensor, a: int, b: int, *, out: Tensor) -> None:
    order = list(range(x.ndim))
    order[a], order[b] = order[b], order[a]
    _reorder(rec, x, order, out)


@handles("mT")
def _matrix_transpose(rec: Recorder, x: Tensor, *args: Any, out: Tensor) -> None:
    _transpose(rec, x, -1, -2, out=out)


def _reorder(rec: Recorder, x: Tensor, order: list[int], out: Tensor) -> None:
    value = rec.need(x)
    n = value.lead
    if order[:n] != list(range(n)):
        raise rec.refuse("a permutation that moves time or batch cannot be folded; keep [T, B] in front")
    rec.node("permute", out, value.layout, value.name, options={"axes": [d - n for d in order[n:]]})


@handles("repeat")
def _repeat(rec: Recorder, x: Tensor, *sizes: Any, out: Tensor, **kwargs: Any) -> None:
    value = rec.need(x)
    if out.shape == x.shape:
        rec.remember(out, value.name, value.layout)
        return
    if value.timed or rec.layout.of_view(out.shape, True) != "frames" or tuple(out.shape[2:]) != value.shape:
        raise rec.refuse(f"fold supports repeat over time only: [1, B, ...] to [T, B, ...], not to {list(out.shape)}")
    rec.node("repeat", out, "frames", value.name)


@handles("stack")
def _stack(rec: Recorder, tensors: Sequence[Tensor], dim: int = 0, *, out: Tensor) -> None:
    names = {value.name if value is not None else "" for value in map(rec.find, tensors)}
    first = rec.find(tensors[0])
    if len(names) != 1 or first is None or first.layout != "still" or dim != 0 or len(tensors) != rec.layout.steps:
        raise rec.refuse("fold supports stack only of one [B, ...] value, T times")
    rec.node("repeat", out, "frames", first.name)


@handles("expand", "expand_as")
def _expand(rec: Recorder, x: Tensor, *sizes: Any, out: Tensor) -> None:
    value = rec.need(x)
    if out.shape == x.shape:
        rec.remember(out, value.name, value.layout)
    elif not value.timed and rec.layout.of_view(out.shape, True) == "frames" and tuple(out.shape[2:]) == value.shape:
        rec.node("repeat", out, "frames", value.name)
    else:
        raise rec.refuse(f"fold does not support expanding {list(x.shape)} to {list(out.shape)}")


@handles("__getitem__", "select")
def _getitem(rec: Recorder, x: Tensor, index: Any, *rest: Any, out: Tensor) -> None:
    value = rec.need(x)
    node = rec.graph[value.name]
    if rest:
        index = (*([slice(None)] * (int(index) % x.ndim)), rest[0])
    if node.op == "repeat" and value.layout == "frames" and index in (0, slice(None, 1), slice(0, 1)):
        rec.remember(out, node.inputs[0], "still" if index == 0 else "still1")
        return
    parts = index if isinstance(index, tuple) else (index,)
    if any(part is None for part in parts) and all(part in (None, slice(None), Ellipsis) for part in parts):
        _view(rec, x, out=out)  # x[None], x[:, None], x[..., None]
        return
    if Ellipsis in parts:
        front = parts.index(Ellipsis)
        parts = (*parts[:front], *[slice(None)] * (x.ndim - len(parts) + 1), *parts[front + 1 :])
    cut = [(axis, part) for axis, part in enumerate(parts) if part != slice(None)]
    plain = all(isinstance(part, slice) and part.step in (None, 1) for part in parts)
    if not plain or len(cut) != 1 or cut[0][0] < value.lead:
        raise rec.refuse(f"fold does not support the indexing {index!r} of a value {list(x.shape)}")
    axis, part = cut[0]
    start = part.indices(x.shape[axis])[0]
    _cut(rec, value, out, axis - value.lead, start)


def _cut(rec: Recorder, value: Value, out: Tensor, axis: int, start: int) -> None:
    length = sample_shape(out.shape, value.layout)[axis]
    rec.node("slice", out, value.layout, value.name, options={"axis": axis, "start": start, "length": length})


@handles("chunk", "split", "tensor_split")
def _split(rec: Recorder, x: Tensor, sizes: Any, dim: int = 0, *, out: Sequence[Tensor]) -> None:
    value = rec.need(x)
    axis = dim % x.ndim - value.lead
    if axis < 0:
        raise rec.refuse("a split of time or batch cannot be folded")
    start = 0
    for piece in out:
        _cut(rec, value, piece, axis, start)
        start += piece.shape[dim]


@handles("cat", "concat", "concatenate")
def _cat(rec: Recorder, tensors: Sequence[Tensor], dim: int = 0, *, out: Tensor) -> None:
    values = [rec.find(t) for t in tensors]
    first = values[0]
    if first is None or any(v is None or v.layout != first.layout for v in values):
        raise rec.refuse("a concatenation takes values with time and batch on the same axes")
    names = [v.name for v in values if v is not None]
    axis = dim % out.ndim
    if first.layout == "still" and axis == 0 and len(set(names)) == 1 and len(names) == rec.layout.steps:
        rec.node("repeat", out, "folded", first.name)
    elif axis >= LEADING[first.layout] and is_timed(first.layout) == first.timed:
        rec.node("concat", out, first.layout, *names, options={"axis": axis - first.lead})
    else:
        raise rec.refuse("a concatenation over time or batch cannot be folded")
