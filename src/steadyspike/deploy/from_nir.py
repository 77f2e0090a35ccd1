"""NIR import: a graph of NIR nodes as a folded network.

Reads what `to_nir` writes, in all modes, and graphs of other tools made of the same nodes. The network is float64 if
the file's weights are, else float32. A plain LIF node starts at 0, as NIR says. One that leaks and resets to the same
value v_leak = v_reset = c is our neuron with V = v_threshold - c and U[0] = -c; different values are refused by name.
An input gain r other than 1 or tau / dt is a weight before the neuron.

The graph is walked once, in the order of its edges. Every number is checked: a network that this file makes runs.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import torch
from torch import Tensor

from steadyspike.deploy.errors import CannotFold, DamagedFile, missing_package
from steadyspike.deploy.graph import Graph, Node
from steadyspike.deploy.network import FoldedNetwork
from steadyspike.deploy.nir_file import read_nir_file
from steadyspike.deploy.nir_values import (
    input_shape,
    neuron_constant,
    one_per_axis,
    padding_of,
    seconds_per_step,
    spread,
    timesteps_of,
    weights_dtype,
    whole_number,
)
from steadyspike.deploy.schema import Invalid, check_shapes
from steadyspike.deploy.to_nir import next_number


class _Reader:
    def __init__(self, source: Any, dt: float) -> None:
        self.source, self.dt = source, dt
        self.kind = {name: type(node).__name__ for name, node in source.nodes.items()}
        self.before: dict[str, list[str]] = {name: [] for name in source.nodes}
        self.after: dict[str, list[str]] = {name: [] for name in source.nodes}
        for a, b in source.edges:
            if a not in self.kind or b not in self.kind:
                raise CannotFold(f"the NIR graph has an edge from {a!r} to {b!r}, and has no such nodes")
            self.before[b].append(a)
            self.after[a].append(b)
        self.dtype = weights_dtype(source)
        self.graph = Graph(timesteps_of(source.metadata))
        self.done: dict[str, str] = {}
        self.totals: dict[str, str] = {}  # for each NIR node, the value of everything that arrives at it

    def read(self) -> FoldedNetwork:
        outputs = [name for name, kind in self.kind.items() if kind == "Output"]
        if len(outputs) != 1:
            raise CannotFold(f"the NIR graph has {len(outputs)} outputs; one is expected")
        for name in self._in_order(outputs[0]):
            self.value(name)
        self.graph.output = self.total(self.before[outputs[0]], outputs[0])
        inputs = [node for node in self.graph if node.op == "input"]
        if len(inputs) != 1:
            raise CannotFold(f"the output of the NIR graph depends on {len(inputs)} inputs; one is expected")
        graph = self.graph.pruned()
        try:
            check_shapes(graph)
        except Invalid as error:
            raise CannotFold(f"the NIR graph cannot be computed: {error}") from None
        return FoldedNetwork(graph).train(False)

    def _in_order(self, last: str) -> list[str]:
        """The nodes that ``last`` needs, each behind what feeds it: in this order a deep graph needs no deep stack."""
        order: list[str] = []
        seen, open_ = {last}, {last}
        todo = [(last, iter(self.before[last]))]
        while todo:
            name, sources = todo[-1]
            fresh = None
            for source in sources:
                # The feedback of a soft reset, Threshold -> Scale -> LI, is part of the neuron.
                if source in open_ and not self._closes_reset(source, name):
                    raise CannotFold(
                        f"{source}: the NIR graph is recurrent (through {name}), which a folded network cannot be"
                    )
                if source not in seen:
                    fresh = source
                    break
            if fresh is not None:
                seen.add(fresh)
                open_.add(fresh)
                todo.append((fresh, iter(self.before[fresh])))
                continue
            todo.pop()
            open_.discard(name)
            if (
                name != last
                and not self._is_membrane(name)
                and not self._is_feedback(name)
                and not self._is_start(name)
            ):
                order.append(name)
        return order

    def _is_membrane(self, name: str) -> bool:
        return self.kind[name] == "LI" and any(self.kind[after] == "Threshold" for after in self.after[name])

    def _is_feedback(self, name: str) -> bool:
        return self.kind[name] == "Scale" and any(self._is_membrane(after) for after in self.after[name])

    def _closes_reset(self, source: str, name: str) -> bool:
        """True for the edge Threshold -> Scale whose Scale feeds the membrane that the Threshold reads."""
        fed = [after for after in self.after[name] if after in self.before[source]]
        return self.kind[source] == "Threshold" and self._is_feedback(name) and bool(fed)

    def _is_start(self, name: str) -> bool:
        return name.endswith(("_start", "_start_scale")) and self.kind[name] in ("Input", "Scale")

    def total(self, names: list[str], at: str) -> str:
        """The sum of the values of several nodes, as NIR adds what arrives at one node."""
        if at not in self.totals:
            self.totals[at] = self._total(names, at)
        return self.totals[at]

    def _total(self, names: list[str], at: str) -> str:
        values = [self.value(name) for name in names]
        if not values:
            raise CannotFold(f"{at}: nothing feeds it")
        if len(values) == 1:
            return values[0]
        edges = {f"edge{i}": self._edge(name) for i, name in enumerate(names) if self.kind[name] == "Scale"}
        inputs = [self.totals[n] if self.kind[n] == "Scale" else v for n, v in zip(names, values)]
        return self.graph.add(Node(f"{at}:sum", "sum", tuple(inputs), self.graph[inputs[0]].shape, True, {}, edges))

    def _edge(self, name: str) -> Tensor:
        scale = self._tensor(self.source.nodes[name].scale, name)
        same = bool((scale == scale.flatten()[0]).all())
        return scale.flatten()[:1].view([1] * scale.ndim).clone() if same else scale

    def _tensor(self, array: Any, what: str = "") -> Tensor:
        values = np.asarray(array)
        if values.dtype.kind not in "fiu" or not np.isfinite(values).all():
            raise CannotFold(f"{what}: its constants are not finite numbers")
        return torch.as_tensor(values.astype(np.float64)).to(self.dtype)

    def _bias(self, node: Any, name: str) -> Tensor:
        bias = self._tensor(node.bias, name)
        if bias.ndim != 1:  # [T, C] would be a bias per step, which NIR does not have
            raise CannotFold(f"{name}: its bias is {list(bias.shape)}, not one number per channel")
        return bias

    def value(self, name: str) -> str:
        if name not in self.done:
            self.done[name] = self._read(name)
        return self.done[name]

    def _read(self, name: str) -> str:
        node, kind = self.source.nodes[name], self.kind[name]
        if kind == "Input":
            return self.graph.add(Node("input", "input", (), input_shape(node.input_type["input"], name), True))
        if kind == "Threshold":
            return self._soft(name, node)
        if kind == "LIF":
            return self._plain(name, node)
        if kind == "LI":
            return self._integrator(name, node)
        source = self.total(self.before[name], name)
        shape = self.graph[source].shape
        if kind == "Scale":
            edges = {"edge0": self._edge(name)}
            return self.graph.add(Node(name, "sum", (source,), shape, True, {}, edges))
        if kind in ("Affine", "Linear"):
            tensors = {"weight": self._tensor(node.weight, name)}
            if kind == "Affine":
                tensors["bias"] = self._bias(node, name)
            return self.graph.add(
                Node(name, "linear", (source,), (*shape[:-1], node.weight.shape[0]), True, {}, tensors)
            )
        if kind in ("Conv1d", "Conv2d"):
            return self._conv(name, node, source)
        if kind in ("AvgPool2d", "SumPool2d"):
            return self._pool(name, node, source)
        if kind == "Flatten":
            return self._flatten(name, node, source)
        raise CannotFold(f"{name}: the NIR node {kind} is not one that this importer knows")

    def _conv(self, name: str, node: Any, source: str) -> str:
        weight, axes = self._tensor(node.weight, name), 1 if self.kind[name] == "Conv1d" else 2
        shape = self.graph[source].shape
        if weight.ndim != axes + 2 or len(shape) != axes + 1:
            raise CannotFold(f"{name}: weights {list(weight.shape)} do not fit an input {list(shape)}")
        options: dict[str, Any] = {k: one_per_axis(getattr(node, k), axes, name) for k in ("stride", "dilation")}
        options["padding"] = padding_of(node.padding, weight.shape[2:], options, name)
        options["groups"] = whole_number(node.groups, name)
        size = [
            (n + 2 * p - d * (k - 1) - 1) // s + 1
            for n, k, s, p, d in zip(
                shape[1:], weight.shape[2:], options["stride"], options["padding"], options["dilation"]
            )
        ]
        tensors = {"weight": weight, "bias": self._bias(node, name)}
        return self._add(name, "conv", source, (weight.shape[0], *size), options, tensors)

    def _pool(self, name: str, node: Any, source: str) -> str:
        options: dict[str, Any] = {k: one_per_axis(getattr(node, k), 2, name) for k in ("kernel_size", "stride")}
        options["padding"] = one_per_axis(node.padding, 2, name, least=0)
        if len(self.graph[source].shape) != 3:
            raise CannotFold(f"{name}: a pool takes [C, H, W], got {list(self.graph[source].shape)}")
        channels, *sides = self.graph[source].shape
        size = [
            (n + 2 * p - k) // s + 1
            for n, k, s, p in zip(sides, options["kernel_size"], options["stride"], options["padding"])
        ]
        shape = (channels, *size)
        pooled = self._add(name, "avg_pool", source, shape, {**options, "ceil_mode": False, "count_include_pad": True})
        if self.kind[name] == "AvgPool2d":
            return pooled
        count = torch.full((1, 1, 1), float(np.prod(options["kernel_size"])), dtype=self.dtype)
        return self._add(f"{name}:sum", "sum", pooled, shape, {}, {"edge0": count})

    def _flatten(self, name: str, node: Any, source: str) -> str:
        shape = self.graph[source].shape
        first, last = (whole_number(getattr(node, k), name, least=-8) for k in ("start_dim", "end_dim"))
        first, last = (n + len(shape) if n < 0 else n for n in (first, last))
        if not 0 <= first <= last < len(shape):
            raise CannotFold(f"{name}: the axes {first} to {last} of {list(shape)} cannot be flattened")
        flat = (*shape[:first], int(np.prod(shape[first : last + 1])), *shape[last + 1 :])
        return self._add(name, "reshape", source, flat)

    def _add(
        self, name: str, op: str, source: str, shape: tuple[int, ...], options: dict[str, Any] | None = None,
        tensors: dict[str, Tensor] | None = None,
    ) -> str:  # fmt: skip
        if any(size < 1 for size in shape):
            raise CannotFold(f"{name}: nothing is left of its input: {list(shape)}")
        return self.graph.add(Node(name, op, (source,), shape, True, options or {}, tensors or {}))

    def _currents(self, name: str, without: str | None = None) -> tuple[str, np.ndarray | None]:
        """The current of a neuron, and the one-off current of its first step where the graph has one."""
        start, names = None, []
        for source in self.before[name]:
            extra = self.before[source]
            if source == without:
                continue
            if (
                self.kind[source] == "Scale"
                and extra
                and self.kind[extra[0]] == "Input"
                and extra[0].endswith("_start")
            ):
                start = np.asarray(self.source.nodes[source].scale)
            else:
                names.append(source)
        return self.total(names, name), start

    def _neuron(self, name: str, node: Any, fire: np.ndarray, source: str, start: np.ndarray | None, soft: bool) -> str:
        shape = self.graph[source].shape
        origin = spread(node.v_leak, shape, name)
        if soft and origin.any():
            raise CannotFold(f"{name}: v_leak other than 0 of a membrane with soft reset is not read")
        leak, decays, source = self._charged(name, node, source)
        strict = bool(node.metadata.get("strict", 1))
        v = spread(fire, shape, name) - origin
        if not (np.isfinite(v).all() and (v > 0).all()):
            raise CannotFold(f"{name}: its threshold is not above its resting potential")
        if not strict:
            v = next_number(v, np.inf, self.dtype)
        r = 1.0 if decays else 1 / leak
        u0 = -origin if start is None else spread(start, shape, name) / ((1 / leak - 1) / r) - origin
        if "v_init" in node.metadata:
            u0 = spread(node.metadata["v_init"], shape, name)
        if not np.isfinite(u0).all():
            raise CannotFold(f"{name}: its initial potential is not finite")
        constants = {"threshold": v, "leak": leak, "start": u0}
        tensors = {what: neuron_constant(values, shape, self.dtype) for what, values in constants.items()}
        options = {
            "reset": "soft" if soft else "hard", "strict": strict, "decay_input": decays, "emit": "spikes",
            "neuron": "LIF",
        }  # fmt: skip
        return self._lif(name, source, options, tensors)

    def _lif(self, name: str, source: str, options: dict[str, Any], tensors: dict[str, Tensor]) -> str:
        for what in ("threshold", "leak"):
            if tensors[what].ndim > 1:
                raise CannotFold(f"{name}: a {what} per neuron; one per layer or channel is expected")
        return self._add(name, "lif", source, self.graph[source].shape, options, tensors)

    def _charged(self, name: str, node: Any, source: str) -> tuple[np.ndarray, bool, str]:
        """1/tau in steps, whether the input decays with it, and the current with the gain r in it."""
        shape = self.graph[source].shape
        tau = spread(node.tau, shape, name)
        with np.errstate(divide="ignore", over="ignore"):
            leak = self.dt / tau
        if not (np.isfinite(leak).all() and (leak > 0).all() and (leak <= 1).all()):
            raise CannotFold(f"{name}: tau must be at least one time step ({self.dt:g} s) and finite")
        r = spread(node.r, shape, name)
        if not np.isfinite(r).all():
            raise CannotFold(f"{name}: r is not finite")
        if np.allclose(r, 1, rtol=1e-12):
            return leak, True, source
        if np.allclose(r * leak, 1, rtol=1e-9):
            return leak, False, source
        gain = {"edge0": torch.as_tensor(r.copy()).to(self.dtype)}
        return leak, True, self._add(f"{name}:r", "sum", source, shape, {}, gain)

    def _integrator(self, name: str, node: Any) -> str:
        """A membrane without spikes: its value is the potential."""
        source = self.total(self.before[name], name)
        if np.any(spread(node.v_leak, self.graph[source].shape, name)):
            raise CannotFold(f"{name}: an LI node with v_leak other than 0 is not read")
        leak, decays, source = self._charged(name, node, source)
        tensors = {"threshold": torch.ones(1, dtype=self.dtype), "start": torch.zeros(1, dtype=self.dtype)}
        tensors["leak"] = neuron_constant(leak, self.graph[source].shape, self.dtype)
        options = {"reset": "none", "strict": False, "decay_input": decays, "emit": "potential", "neuron": "LI"}
        return self._lif(name, source, options, tensors)

    def _soft(self, name: str, threshold: Any) -> str:
        membranes = [m for m in self.before[name] if self.kind[m] == "LI"]
        feedback = [
            s for s in self.after[name] if self.kind[s] == "Scale" and membranes and membranes[0] in self.after[s]
        ]
        if len(membranes) != 1 or len(feedback) != 1:
            raise CannotFold(f"{name}: a Threshold is read only behind one LI node with a Scale that feeds back to it")
        source, start = self._currents(membranes[0], feedback[0])
        return self._neuron(name, self.source.nodes[membranes[0]], threshold.threshold, source, start, soft=True)

    def _plain(self, name: str, node: Any) -> str:
        reset = np.asarray(0.0 if node.v_reset is None else node.v_reset)
        if np.any(reset != np.asarray(node.v_leak)):
            raise CannotFold(f"{name}: v_reset and v_leak differ; our neuron resets to where its potential leaks to")
        source, start = self._currents(name)
        return self._neuron(name, node, node.v_threshold, source, start, soft=bool(node.metadata.get("soft", 0)))


def from_nir(source: Any, dt: float | None = None) -> FoldedNetwork:
    """The network of a NIR graph or file; dt: seconds per time step, by default the graph's own, else 1e-4.

    A file is read in a process of its own with limits of memory and time (`nir_file`). A damaged file is a
    `DamagedFile`, a graph that is not a folded network `CannotFold`: one line each.
    """
    missing_package("nir", "export")
    if isinstance(source, (str, os.PathLike)):
        return network_of(read_nir_file(source), dt, os.path.basename(source))
    return network_of(source, dt, None)


def network_of(source: Any, dt: float | None, name: str | None) -> FoldedNetwork:
    """The network of a NIR graph; name: of the file that it came from."""
    import nir

    if not isinstance(source, nir.NIRGraph):
        raise DamagedFile(f"{name or 'this'} is not a NIR graph, but a {type(source).__name__} node")
    if any(isinstance(node, nir.NIRGraph) for node in source.nodes.values()):
        raise CannotFold("the NIR graph has graphs inside; one with plain nodes is expected")
    try:
        return _Reader(source, seconds_per_step(source, dt)).read()
    except CannotFold:
        raise
    except Exception as error:  # attributes of the file's nodes may be anything
        if name is None:
            raise
        what = f"{type(error).__name__}: {' '.join(str(error).split())[:120]}"
        raise DamagedFile(f"{name} is not a readable NIR file: {what}") from None
