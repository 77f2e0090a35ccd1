"""`fold_graph`: rewrites the graph of a trained model as an equivalent network of binary spikes.

In training a TrSG neuron emits V S. The fold moves V into the layers that read the spikes, so that every neuron emits
S, 0 or 1:

- a convolution or linear layer absorbs V into its weights, never into its bias; the batch norm after it is absorbed
  too;
- pooling, reshaping, means over space or time commute with V > 0;
- a sum that feeds a neuron keeps V as the constant of its edge (an identity synapse of weight V);
- products of spikes (attention) multiply their V;
- a stream that adds the spikes of several neurons is a count times V if they share one V. If they do not, it cannot be
  folded exactly into one weight: see `Mode`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from steadyspike.deploy.errors import CannotFold
from steadyspike.deploy.graph import Graph, Node
from steadyspike.deploy.ops import OPS
from steadyspike.deploy.synapses import absorb_norms, scaled_weight

# What to do with a stream that adds spikes of neurons with different thresholds: raise an error ("exact"); read it by
# one copy of the weights per writer ("split", binary inputs); or keep it as real numbers ("graded", multiplications).
Mode = Literal["exact", "split", "graded"]
MODES = ("exact", "split", "graded")
# Operations that work on each channel separately: a scale per channel commutes with them.
OVER_PIXELS = ("avg_pool", "max_pool", "adaptive_avg_pool", "adaptive_max_pool", "upsample", "pad")


class Part(NamedTuple):
    """A node's value times ``scale``, which broadcasts to one sample.

    Spikes have a scale; for real values it is None.
    """

    name: str
    scale: Tensor | None = None


Parts = list[Part]  # a value of the model as the sum of its parts


class _Fold:
    """The rewriting of one graph: for each node of the model, the parts of the new graph whose sum is its value."""

    def __init__(self, model: Graph, mode: Mode) -> None:
        self.model, self.mode = model, mode
        self.graph = Graph(model.timesteps)
        self.parts: dict[str, Parts] = {}
        self.offending: list[str] = []

    def run(self) -> Graph:
        for node in self.model:
            self.parts[node.name] = self._rewrite(node, [self.parts[name] for name in node.inputs])
        if self.offending:
            streams = "\n".join(f"  {line}" for line in self.offending)
            raise CannotFold(
                "neurons with different thresholds write to one stream, and no single weight can absorb them: "
                f"{streams} Train with tie_stream_threshold=True, or fold with mode='split' (one copy of the weights "
                "per writer; not through a max-pool or a product) or mode='graded' (the stream stays real-valued)"
            )
        self.graph.output = self._one(self.model[self.model.output], self.parts[self.model.output])
        return self.graph.pruned()

    def _add(self, node: Node, *inputs: str, **changes: object) -> str:
        return self.graph.add(replace(node, inputs=inputs, **changes))  # type: ignore[arg-type]

    def _rewrite(self, node: Node, inputs: list[Parts]) -> Parts:
        if node.op == "input":
            return [Part(self._add(node))]
        if node.op == "lif":
            return self._neuron(node, inputs[0])
        if node.op == "spikes":
            return self._spikes(node, inputs[0])
        if node.op == "complement" and len(inputs[0]) == 1 and _is_one(inputs[0][0].scale):
            return [Part(self._add(node, inputs[0][0].name), inputs[0][0].scale)]
        if node.op in ("conv", "conv_transpose", "linear"):
            return self._synapse(node, inputs[0])
        if node.op == "sum":
            return self._sum(node, inputs)
        if node.op in ("multiply", "matmul"):
            return self._product(node, inputs)
        if OPS[node.op].linear or (OPS[node.op].monotone and len(inputs[0]) == 1):
            return [self._commuting(node, part) for part in inputs[0]]
        if node.op == "concat":
            return self._concat(node, inputs)
        return [Part(self._add(node, *(self._single(node, i, p) for i, p in zip(node.inputs, inputs))))]

    def _single(self, node: Node, source: str, parts: Parts) -> str:
        """The value of ``source`` as one node, for an operation that cannot process a stream's writers one by one."""
        streams = len(parts) > 1 and all(part.scale is not None for part in parts)
        if streams and self.mode != "graded":
            self._offend(node, parts)
        return self._one(self.model[source], parts)

    def _neuron(self, node: Node, parts: Parts) -> Parts:
        source = self._one(self.model[node.inputs[0]], parts)
        if node.options["emit"] == "potential":
            return [Part(self._add(node, source))]
        v = node.tensors["threshold"]
        level = v if node.options["emit"] == "scaled" else torch.ones_like(v[:1])
        name = self._add(node, source, options={**node.options, "emit": "spikes"})
        return [Part(name, level.view(-1, *([1] * (len(node.shape) - 1))))]

    def _spikes(self, node: Node, parts: Parts) -> Parts:
        """Returns S if the model divides a neuron's output by V, because the neuron already emits S."""
        if len(parts) != 1 or parts[0].scale is None:
            raise CannotFold(f"{node.name}: the spikes of a value that is not one neuron's output")
        return [Part(parts[0].name, torch.ones([1] * len(node.shape), dtype=parts[0].scale.dtype))]

    def _synapse(self, node: Node, parts: Parts) -> Parts:
        if len(parts) == 1:
            (part,) = parts
            weight = scaled_weight(node, part.scale)
            if weight is not None:
                return [Part(self._add(node, part.name, tensors={**node.tensors, "weight": weight}))]
        elif self.mode == "split" and node.op != "conv_transpose" and all(part.scale is not None for part in parts):
            return self._split(node, parts)
        return [Part(self._add(node, self._single(node, node.inputs[0], parts)))]

    def _split(self, node: Node, parts: Parts) -> Parts:
        """Builds one convolution over all concatenated writers: weights [V1 W | V2 W | ...]."""
        weights = [scaled_weight(node, part.scale) for part in parts]
        shape = self.model[node.inputs[0]].shape
        broadcast = any(self.graph[part.name].shape != shape for part in parts)  # cannot be combined with the others
        if broadcast or node.options.get("groups", 1) != 1 or any(w is None for w in weights):
            return [Part(self._add(node, self._single(node, node.inputs[0], parts)))]
        axis = 0 if node.op == "conv" else len(self.model[node.inputs[0]].shape) - 1
        name = self._side_by_side(self.model[node.inputs[0]], [part.name for part in parts], axis)
        weight = torch.cat([w for w in weights if w is not None], 1)
        return [Part(self._add(node, name, tensors={**node.tensors, "weight": weight}))]

    def _side_by_side(self, like: Node, names: Sequence[str], axis: int) -> str:
        shape = list(like.shape)
        shape[axis] *= len(names)
        return self.graph.add(
            Node(f"{like.name}:writers", "concat", tuple(names), tuple(shape), like.timed, {"axis": axis})
        )

    def _offend(self, node: Node, parts: Parts) -> None:
        values = ", ".join(f"{part.name} ({_show(part.scale)})" for part in parts)
        self.offending.append(f"{node.name} reads {values}")

    def _sum(self, node: Node, inputs: list[Parts]) -> Parts:
        edges = [node.tensors.get(f"edge{i}") for i in range(len(inputs))]
        parts = [_times(part, edge) for term, edge in zip(inputs, edges) for part in term]
        offset = node.tensors.get("offset")
        real = [term[0].scale is None for term in inputs]
        if offset is None and not any(real):
            return self._merged(node, parts)
        return [Part(self._weighted(node, parts, offset))]

    def _merged(self, node: Node, parts: Parts) -> Parts:
        """Adds a sum of spikes: parts with the same scale become one count."""
        groups: list[list[Part]] = []
        for part in parts:
            for group in groups:
                if _same(part.scale, group[0].scale):
                    group.append(part)
                    break
            else:
                groups.append([part])
        bare = replace(node, tensors={})
        merged = [g[0] if len(g) == 1 else Part(self._add(bare, *(p.name for p in g)), g[0].scale) for g in groups]
        if len(merged) > 1 and self.mode == "graded":
            return [Part(self._weighted(node, merged, None))]
        return merged

    def _weighted(self, node: Node, parts: Parts, offset: Tensor | None) -> str:
        tensors = {
            f"edge{i}": part.scale for i, part in enumerate(parts) if part.scale is not None and not _is_one(part.scale)
        }
        if offset is not None:
            tensors["offset"] = offset
        return self.graph.add(
            Node(node.name if node.op == "sum" else f"{node.name}:sum", "sum", tuple(p.name for p in parts), node.shape,
                 node.timed, {}, tensors)
        )  # fmt: skip

    def _one(self, node: Node, parts: Parts) -> str:
        """Returns one node with the whole value: an explicit weighted sum if the parts have constants."""
        if len(parts) == 1 and (parts[0].scale is None or _is_one(parts[0].scale)):
            return parts[0].name
        return self._weighted(node, parts, None)

    def _product(self, node: Node, inputs: list[Parts]) -> Parts:
        if any(len(parts) > 1 for parts in inputs):
            return [Part(self._add(node, *(self._single(node, i, p) for i, p in zip(node.inputs, inputs))))]
        (a,), (b,) = inputs
        scales = [s for s in (a.scale, b.scale) if s is not None]
        if all(s.numel() == 1 for s in scales) or node.op == "multiply":
            name = self._add(node, a.name, b.name)
            scale: Tensor | None = None
            for s in scales:
                s = s.reshape([1] * len(node.shape)) if s.numel() == 1 else s
                scale = s if scale is None else scale * s
            return [Part(name, scale)]
        return [Part(self._add(node, *(self._one(self.model[i], p) for i, p in zip(node.inputs, inputs))))]

    def _commuting(self, node: Node, part: Part) -> Part:
        """Applies op(V S) = V op(S): the same operation on the spikes, which keeps the scale."""
        scale = None
        if part.scale is not None:
            scale = _scale_through(node, self.model[node.inputs[0]], part.scale)
            if scale is None or (OPS[node.op].monotone and not bool((part.scale > 0).all())):
                return Part(self._add(node, self._weighted(self.model[node.inputs[0]], [part], None)))
        return Part(self._add(node, part.name), scale)

    def _concat(self, node: Node, inputs: list[Parts]) -> Parts:
        if any(len(parts) > 1 for parts in inputs) or all(parts[0].scale is None for parts in inputs):
            return [Part(self._add(node, *(self._single(node, i, p) for i, p in zip(node.inputs, inputs))))]
        dtype = next(part.scale.dtype for (part,) in inputs if part.scale is not None)
        scales = []
        for name, (part,) in zip(node.inputs, inputs):
            shape = self.model[name].shape
            full = torch.ones(1, dtype=dtype) if part.scale is None else part.scale
            scales.append(full.expand(shape))
        scale = _compact(torch.cat(scales, node.options["axis"]))
        return [Part(self._add(node, *(parts[0].name for parts in inputs)), scale)]


def _times(part: Part, edge: Tensor | None) -> Part:
    if edge is None:
        return part
    return Part(part.name, edge if part.scale is None else part.scale * edge)


def _is_one(scale: Tensor | None) -> bool:
    return scale is not None and bool((scale == 1).all())


def _same(a: Tensor | None, b: Tensor | None) -> bool:
    assert a is not None and b is not None
    return torch.equal(*torch.broadcast_tensors(a, b))


def _show(scale: Tensor | None) -> str:
    assert scale is not None
    return f"V = {scale.item():.4g}" if scale.numel() == 1 else f"V = {scale.min():.4g} to {scale.max():.4g}"


def _scale_through(node: Node, source: Node, scale: Tensor) -> Tensor | None:
    """Returns the new scale in op(scale * S) = new scale * op(S); None if the operation mixes different scales."""
    if scale.numel() == 1:
        return scale.reshape([1] * len(node.shape))
    if node.op in ("repeat", "time_mean", "time_sum"):
        return scale
    if node.op in OVER_PIXELS:
        return scale if all(size == 1 for size in scale.shape[1:]) else None
    full = scale.expand(source.shape)
    if node.op == "mean" and any(scale.shape[axis] != 1 for axis in node.options["axes"]):
        return None
    return _compact(OPS[node.op].compute(replace(node, timed=False), full[None])[0])


def _compact(scale: Tensor) -> Tensor:
    """The same scale with size 1 on every axis along which it does not change, so that weights can absorb it."""
    for axis in range(scale.ndim):
        first = scale.narrow(axis, 0, 1)
        if bool((scale == first).all()):
            scale = first
    return scale.clone()


def fold_graph(graph: Graph, mode: Mode = "exact") -> Graph:
    """Returns the graph of binary spikes that is equivalent to ``graph``."""
    if mode not in MODES:
        raise ValueError(f"unknown mode {mode!r}; known: {', '.join(MODES)}")
    return absorb_norms(_Fold(absorb_norms(graph), mode).run())
