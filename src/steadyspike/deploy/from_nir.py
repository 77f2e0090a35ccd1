"""NIR import: a graph of NIR nodes as a folded network.

Reads what `to_nir` writes, in all modes, and graphs of other tools made of the same nodes. The network is float64 if
the file's weights are, else float32. A plain LIF node starts at 0, as NIR says. One that leaks and resets to the same
value v_leak = v_reset = c is our neuron with V = v_threshold - c and U[0] = -c; different values are refused by name.
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
from steadyspike.deploy.to_nir import DT, next_number


def _constant(values: np.ndarray, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """A neuron constant: [1] if it is the same everywhere, [C] if it is per channel, else [1, ...] per neuron."""
    full = torch.as_tensor(np.broadcast_to(np.asarray(values, dtype=np.float64), shape).copy()).to(dtype)
    if bool((full == full.flatten()[0]).all()):
        return full.flatten()[:1].clone()
    per_channel = full.flatten(1)[:, 0] if full.ndim > 1 else full
    spread = per_channel.view(-1, *([1] * (len(shape) - 1))).expand(shape)
    return per_channel.clone() if torch.equal(spread, full) else full[None]


class _Reader:
    def __init__(self, source: Any, dt: float) -> None:
        self.source, self.dt = source, dt
        self.before: dict[str, list[str]] = {name: [] for name in source.nodes}
        for a, b in source.edges:
            self.before[b].append(a)
        self.kind = {name: type(node).__name__ for name, node in source.nodes.items()}
        self.after: dict[str, list[str]] = {name: [] for name in source.nodes}
        for a, b in source.edges:
            self.after[a].append(b)
        self.dtype = _dtype(source)
        self.graph = Graph(int(source.metadata.get("timesteps", 1)))
        self.done: dict[str, str] = {}

    def read(self) -> FoldedNetwork:
        outputs = [name for name, kind in self.kind.items() if kind == "Output"]
        if len(outputs) != 1:
            raise CannotFold(f"the NIR graph has {len(outputs)} outputs; one is expected")
        for name in self._in_order(outputs[0]):
            self.value(name)
        self.graph.output = self.total(self.before[outputs[0]], outputs[0])
        return FoldedNetwork(self.graph.pruned()).train(False)

    def _in_order(self, last: str) -> list[str]:
        """The nodes that ``last`` needs, each behind what feeds it: in this order a deep graph needs no deep stack."""
        order: list[str] = []
        seen = {last}
        todo = [(last, iter(self.before[last]))]
        while todo:
            name, sources = todo[-1]
            fresh = next((s for s in sources if s not in seen), None)
            if fresh is not None:
                seen.add(fresh)
                todo.append((fresh, iter(self.before[fresh])))
                continue
            todo.pop()
            if name != last and self.kind[name] != "LI" and not self._is_feedback(name) and not self._is_start(name):
                order.append(name)
        return order

    def _is_feedback(self, name: str) -> bool:
        return self.kind[name] == "Scale" and any(self.kind[after] == "LI" for after in self.after[name])

    def _is_start(self, name: str) -> bool:
        return name.endswith(("_start", "_start_scale"))

    def total(self, names: list[str], at: str) -> str:
        """The sum of the values of several nodes, as NIR adds what arrives at one node."""
        values = [self.value(name) for name in names]
        if not values:
            raise CannotFold(f"{at}: nothing feeds it")
        if len(values) == 1:
            return values[0]
        edges = {f"edge{i}": self._edge(name) for i, name in enumerate(names) if self.kind[name] == "Scale"}
        inputs = [self.total(self.before[n], n) if self.kind[n] == "Scale" else v for n, v in zip(names, values)]
        return self.graph.add(Node(f"{at}:sum", "sum", tuple(inputs), self.graph[inputs[0]].shape, True, {}, edges))

    def _edge(self, name: str) -> Tensor:
        scale = self._tensor(self.source.nodes[name].scale)
        same = bool((scale == scale.flatten()[0]).all())
        return scale.flatten()[:1].view([1] * scale.ndim).clone() if same else scale

    def _tensor(self, array: Any) -> Tensor:
        return torch.as_tensor(np.array(array)).to(self.dtype)

    def value(self, name: str) -> str:
        if name not in self.done:
            self.done[name] = self._read(name)
        return self.done[name]

    def _read(self, name: str) -> str:
        node, kind = self.source.nodes[name], self.kind[name]
        if kind == "Input":
            return self.graph.add(Node("input", "input", (), tuple(int(n) for n in node.input_type["input"]), True))
        if kind == "Threshold":
            return self._soft(name, node)
        if kind == "LIF":
            return self._plain(name, node)
        source = self.total(self.before[name], name)
        shape = self.graph[source].shape
        if kind == "Scale":
            edges = {"edge0": self._edge(name)}
            return self.graph.add(Node(name, "sum", (source,), shape, True, {}, edges))
        if kind in ("Affine", "Linear"):
            tensors = {"weight": self._tensor(node.weight)}
            if kind == "Affine":
                tensors["bias"] = self._tensor(node.bias)
            return self.graph.add(
                Node(name, "linear", (source,), (*shape[:-1], node.weight.shape[0]), True, {}, tensors)
            )
        if kind == "Conv2d":
            return self._conv(name, node, source)
        if kind == "AvgPool2d":
            return self._pool(name, node, source)
        if kind == "Flatten":
            return self.graph.add(Node(name, "reshape", (source,), (int(np.prod(shape)),), True))
        raise CannotFold(f"{name}: the NIR node {kind} is not one that this importer knows")

    def _conv(self, name: str, node: Any, source: str) -> str:
        options = {k: _numbers(getattr(node, k)) for k in ("stride", "padding", "dilation")}
        shape = self.graph[source].shape
        kernel = node.weight.shape[2:]
        size = [
            (n + 2 * p - d * (k - 1) - 1) // s + 1
            for n, k, s, p, d in zip(shape[1:], kernel, options["stride"], options["padding"], options["dilation"])
        ]
        tensors = {"weight": self._tensor(node.weight), "bias": self._tensor(node.bias)}
        made = Node(
            name,
            "conv",
            (source,),
            (node.weight.shape[0], *size),
            True,
            {**options, "groups": int(node.groups)},
            tensors,
        )
        return self.graph.add(made)

    def _pool(self, name: str, node: Any, source: str) -> str:
        options = {k: _numbers(getattr(node, k)) for k in ("kernel_size", "stride", "padding")}
        channels, *sides = self.graph[source].shape
        size = [
            (n + 2 * p - k) // s + 1
            for n, k, s, p in zip(sides, options["kernel_size"], options["stride"], options["padding"])
        ]
        return self.graph.add(
            Node(name, "avg_pool", (source,), (channels, *size), True,
                 {**options, "ceil_mode": False, "count_include_pad": True})
        )  # fmt: skip

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
        origin = np.broadcast_to(np.asarray(node.v_leak, dtype=np.float64), shape)
        if soft and origin.any():
            raise CannotFold(f"{name}: v_leak other than 0 of a membrane with soft reset is not read")
        tau = np.asarray(node.tau, dtype=np.float64) / self.dt
        leak = 1 / np.broadcast_to(tau, shape)
        r = np.broadcast_to(np.asarray(node.r, dtype=np.float64), shape)
        decays, charges = np.allclose(r, 1, rtol=1e-12), np.allclose(r * leak, 1, rtol=1e-9)
        if not (decays or charges):
            raise CannotFold(f"{name}: r is neither 1 nor tau / dt; its input gain has no place in our neuron")
        strict = bool(node.metadata.get("strict", 1))
        v = np.broadcast_to(np.asarray(fire, dtype=np.float64), shape) - origin
        if not strict:
            v = next_number(v, np.inf, self.dtype)
        u0 = -origin if start is None else start / ((1 / leak - 1) / r) - origin
        if "v_init" in node.metadata:
            u0 = np.asarray(node.metadata["v_init"])
        constants = {"threshold": v, "leak": leak, "start": u0}
        tensors = {what: _constant(values, shape, self.dtype) for what, values in constants.items()}
        options = {
            "reset": "soft" if soft else "hard", "strict": strict, "decay_input": bool(decays), "emit": "spikes",
            "neuron": "LIF",
        }  # fmt: skip
        for what in ("threshold", "leak"):
            if tensors[what].ndim > 1:
                raise CannotFold(f"{name}: a {what} per neuron; one per layer or channel is expected")
        return self.graph.add(Node(name, "lif", (source,), shape, True, options, tensors))

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


def _dtype(source: Any) -> torch.dtype:
    """float64 if a synapse of the graph has float64 weights, else float32."""
    weights = [np.asarray(node.weight) for node in source.nodes.values() if hasattr(node, "weight")]
    return torch.float64 if any(w.dtype == np.float64 for w in weights) else torch.float32


def _numbers(value: Any) -> list[int]:
    if isinstance(value, str):
        raise CannotFold(f"a convolution's padding must be numbers, got {value!r}")
    return [int(v) for v in np.broadcast_to(np.asarray(value), (2,))]


def from_nir(source: Any, dt: float | None = None) -> FoldedNetwork:
    """The network of a NIR graph or file; dt: seconds per time step, by default the one the graph says, else 1e-4."""
    missing_package("nir", "export")
    import nir

    if isinstance(source, (str, os.PathLike)):
        try:
            source = nir.read(str(source))
        except FileNotFoundError:
            raise
        except (OSError, KeyError, ValueError, TypeError, AssertionError) as error:
            raise DamagedFile(f"{os.path.basename(source)} is not a readable NIR file: {error}") from None
    step = float(source.metadata.get("dt", DT)) if dt is None else dt
    return _Reader(source, step).read()
