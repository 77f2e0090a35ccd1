"""NIR import: a graph of NIR nodes as a folded network.

It reads graphs that `to_nir` writes, in all modes, and graphs of other tools. The network is float64 if the file's
weights are, otherwise float32. NIR's equations are read as forward Euler steps of ``dt`` seconds, starting from
potentials of 0:

* LIF and IF fire at v > v_threshold and are set to v_reset. Our neuron measures its potential from v_reset: V =
  v_threshold - v_reset and U[0] = -v_reset. A v_leak other than v_reset is a constant current v_leak - v_reset.
* CubaLIF and CubaLI are two layers: the synaptic current is updated first, and the membrane then gets the new current.
* An input gain r (or w_in) that is neither 1 nor tau / dt is a weight before the neuron.
* A Threshold without a membrane is a neuron that keeps nothing. After LI, with a Scale that feeds back, it is a soft
  reset.
* A Delay of n steps, and a cycle through a neuron (`nir_graph`), read an earlier time step (`recurrent`).

The graph is traversed once, in the order of its edges. Every number is checked, so a network that is made here can run.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from steadyspike.deploy.errors import CannotFold, DamagedFile, missing_package
from steadyspike.deploy.graph import Graph, Node
from steadyspike.deploy.network import FoldedNetwork
from steadyspike.deploy.nir_file import read_nir_file
from steadyspike.deploy.nir_graph import PASS, Edge, NirGraph
from steadyspike.deploy.nir_membrane import Membrane, membrane_of, neuron_shape, synapse_of
from steadyspike.deploy.nir_values import (
    delay_steps,
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
from steadyspike.deploy.to_nir import WRITER, next_number


class _Reader:
    def __init__(self, source: Any, dt: float, dtype: torch.dtype | None) -> None:
        self.source, self.dt = NirGraph(source, dt), dt
        self.kind, self.before, self.after = self.source.kind, self.source.before, self.source.after
        self.dtype = dtype or weights_dtype(self.source)
        self.graph = Graph(timesteps_of(source.metadata))
        self.own = source.metadata.get("writer") == WRITER
        self.cut: set[Edge] = set()  # the edges that carry the previous step
        self.done: dict[str, str] = {}
        self.totals: dict[str, str] = {}  # for each NIR node, the sum of its inputs
        # nodes ``previous`` -> the NIR node whose total (for a Delay) or value they return
        self.late: dict[str, str] = {}

    def read(self) -> FoldedNetwork:
        outputs = [name for name, kind in self.kind.items() if kind == "Output"]
        if len(outputs) != 1:
            raise CannotFold(f"the NIR graph has {len(outputs)} outputs; one is expected")
        order, self.cut = self.source.order(outputs[0])
        parts = {outputs[0]}  # nodes that are read together with another one: LI and Scale of a soft reset
        for name, scale in self.source.resets.items():
            parts |= {scale, *self.before[name]}
        for name in order:
            if name not in parts and not self._is_start(name):
                self.value(name)
        self.graph.output = self.total(self.before[outputs[0]], outputs[0])
        self._close_loops()
        inputs = [node for node in self.graph if node.op == "input"]
        if len(inputs) != 1:
            raise CannotFold(f"the output of the NIR graph depends on {len(inputs)} inputs; one is expected")
        graph = self.graph.pruned()
        try:
            check_shapes(graph)
        except Invalid as error:
            raise CannotFold(f"the NIR graph cannot be computed: {error}") from None
        return FoldedNetwork(graph).train(False)

    def _close_loops(self) -> None:
        """Sets what the nodes ``previous`` read, after every node has been read."""
        for name, source in self.late.items():
            of = self.total(self.before[source], source) if self.kind[source] == "Delay" else self.value(source)
            node = self.graph[name]
            self.graph.nodes[name] = replace(node, options={**node.options, "of": of})

    def _previous(self, name: str, source: str, shape: tuple[int, ...], steps: int) -> str:
        made = self.graph.add(Node(name, "previous", (), shape, True, {"of": "", "steps": steps}))
        self.late[made] = source
        return made

    def _is_start(self, name: str) -> bool:
        """Returns whether a node is part of the one-off current that `to_nir` writes for U[0]."""
        return self.own and name.endswith(("_start", "_start_scale")) and self.kind[name] in ("Input", "Scale")

    def _arriving(self, name: str, at: str) -> str:
        """Returns what a node passes to the node ``at``: its value, or that of the previous step."""
        if (name, at) not in self.cut:
            return self.value(name)
        key = f"{name}:before"
        if key not in self.done:
            node = self.source.nodes[name]
            self.done[key] = self._previous(key, name, neuron_shape(node, name), 1)
        return self.done[key]

    def total(self, names: list[str], at: str) -> str:
        """Returns the sum of the values of several nodes, because NIR adds all inputs of a node."""
        if at not in self.totals:
            self.totals[at] = self._total(names, at)
        return self.totals[at]

    def _total(self, names: list[str], at: str) -> str:
        values = [self._arriving(name, at) for name in names]
        if not values:
            raise CannotFold(f"{at}: no node feeds it")
        if len(values) == 1:
            return values[0]
        edges = {f"edge{i}": self._edge(name) for i, name in enumerate(names) if self.kind[name] == "Scale"}
        inputs = [self.totals[n] if self.kind[n] == "Scale" else v for n, v in zip(names, values)]
        shapes = {self.graph[value].shape for value in inputs}
        if len(shapes) > 1:
            shown = " and ".join(str(list(shape)) for shape in sorted(shapes))
            raise CannotFold(f"{at}: its inputs have different shapes: {shown}")
        return self.graph.add(Node(f"{at}:sum", "sum", tuple(inputs), shapes.pop(), True, {}, edges))

    def _edge(self, name: str) -> Tensor:
        shape = self.graph[self.totals[name]].shape
        return self._compact(spread(self.source.nodes[name].scale, shape, name), name)

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
        if kind == "Delay":
            steps = delay_steps(node.delay, self.dt, name)
            if steps:
                return self._previous(name, name, np.asarray(node.delay).shape, steps)
        if kind in ("Threshold", "LIF", "IF", "CubaLIF"):
            return self._spiking(name, node, kind)
        if kind in ("LI", "I", "CubaLI"):
            return self._integrator(name, node, kind)
        source = self.total(self.before[name], name)
        shape = self.graph[source].shape
        if kind in (PASS, "Delay"):
            return source
        if kind == "Scale":
            edges = {"edge0": self._edge(name)}
            return self.graph.add(Node(name, "sum", (source,), shape, True, {}, edges))
        if kind in ("Affine", "Linear"):
            tensors = {"weight": self._tensor(node.weight, name)}
            if tensors["weight"].ndim != 2 or tensors["weight"].shape[1:] != shape[-1:]:
                raise _misfit(name, tensors["weight"], shape)
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
        behind = ", ".join(self.before[name])
        raise CannotFold(f"{name} (after {behind}): this importer does not read the NIR node {kind}")

    def _conv(self, name: str, node: Any, source: str) -> str:
        weight, axes = self._tensor(node.weight, name), 1 if self.kind[name] == "Conv1d" else 2
        shape = self.graph[source].shape
        groups = whole_number(node.groups, name)
        fits = weight.ndim == axes + 2 and len(shape) == axes + 1 and weight.shape[1] * groups == shape[0]
        if not fits or weight.shape[0] % groups:
            raise _misfit(name, weight, shape)
        options: dict[str, Any] = {k: one_per_axis(getattr(node, k), axes, name) for k in ("stride", "dilation")}
        options["padding"] = padding_of(node.padding, weight.shape[2:], options, name)
        options["groups"] = groups
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
            raise CannotFold(f"{name}: its output would be empty: {list(shape)}")
        return self.graph.add(Node(name, op, (source,), shape, True, options or {}, tensors or {}))

    def _currents(self, name: str, without: str | None = None) -> tuple[str, np.ndarray | None]:
        """Returns the current of a neuron, and the one-off current of its first step if the graph has one."""
        start, names = None, []
        for source in self.before[name]:
            extra = self.before[source]
            if source == without:
                continue
            if self._is_start(source) and extra and self._is_start(extra[0]):
                start = np.asarray(self.source.nodes[source].scale)
            else:
                names.append(source)
        return self.total(names, name), start

    def _spiking(self, name: str, node: Any, kind: str) -> str:
        """Reads a neuron that fires; the membrane of a Threshold with a soft reset is the LI node before it."""
        feedback = self.source.resets.get(name)
        membrane = self.before[name][0] if feedback else name
        source, start = self._currents(membrane, feedback)
        shape = self.graph[source].shape
        fire = spread(node.threshold if kind == "Threshold" else node.v_threshold, shape, name)
        soft = feedback is not None or bool(node.metadata.get("soft", 0))
        if kind == "CubaLIF":
            source = self._synapse(name, node, source)
        if kind == "Threshold" and not feedback:
            return self._pointwise(name, fire, source)
        state = membrane_of(self.source.nodes[membrane], shape, self.dt, name)
        if soft and state.rest.any():
            raise CannotFold(f"{name}: a v_leak other than 0 is not supported for a membrane with soft reset")
        decays, source = self._charged(name, state, source)
        strict = bool(node.metadata.get("strict", 1))
        v = fire - state.reset
        if not (np.isfinite(v).all() and (v > 0).all()):
            raise CannotFold(f"{name}: its threshold is not above its reset potential")
        if not strict:
            v = next_number(v, np.inf, self.dtype)
        u0 = -state.reset
        if start is not None:  # a one-off current of (tau - 1) U[0] / r
            r = 1.0 if decays else 1 / state.leak
            with np.errstate(divide="ignore", invalid="ignore"):
                u0 = np.where(state.leak < 1, u0 + spread(start, shape, name) / ((1 / state.leak - 1) / r), u0)
        if "v_init" in node.metadata:
            u0 = spread(node.metadata["v_init"], shape, name)
        if not np.isfinite(u0).all():
            raise CannotFold(f"{name}: its initial potential is not finite")
        constants = {"threshold": v, "leak": state.leak, "start": u0}
        options = {"reset": "soft" if soft else "hard", "strict": strict, "decay_input": decays, "emit": "spikes"}
        return self._lif(name, source, {**options, "neuron": "LIF"}, constants)

    def _pointwise(self, name: str, fire: np.ndarray, source: str) -> str:
        """Reads a Threshold that gets a current: a neuron with a leak of 1, which keeps nothing."""
        options = {"reset": "hard", "strict": True, "decay_input": True, "emit": "spikes", "neuron": "Threshold"}
        zero = np.zeros(fire.shape)
        return self._lif(name, source, options, {"threshold": fire, "leak": zero + 1, "start": zero})

    def _integrator(self, name: str, node: Any, kind: str) -> str:
        """Reads a membrane without spikes: its value is the potential."""
        source = self.total(self.before[name], name)
        if kind == "CubaLI":
            source = self._synapse(name, node, source)
        state = membrane_of(node, self.graph[source].shape, self.dt, name)
        return self._potential(name, source, state, kind)

    def _synapse(self, name: str, node: Any, source: str) -> str:
        """Reads the synaptic current of a CubaLIF or CubaLI node: a leaky integrator of w_in times its input."""
        state = synapse_of(node, self.graph[source].shape, self.dt, name)
        return self._potential(f"{name}:synapse", source, state, "synapse")

    def _potential(self, name: str, source: str, state: Membrane, kind: str) -> str:
        decays, source = self._charged(name, state, source)
        zero = np.zeros(state.leak.shape)
        options = {"reset": "none", "strict": False, "decay_input": decays, "emit": "potential", "neuron": kind}
        return self._lif(name, source, options, {"threshold": zero + 1, "leak": state.leak, "start": zero})

    def _charged(self, name: str, state: Membrane, source: str) -> tuple[bool, str]:
        """Whether the input decays with the leak, and the current including the gain and the resting potential."""
        leaks = bool((state.leak > 0).any())
        pull = state.rest - state.reset if leaks else np.zeros(state.leak.shape)
        if not pull.any():
            if leaks and np.allclose(state.gain, state.leak, rtol=1e-12):
                return True, source
            if np.allclose(state.gain, 1, rtol=1e-9):
                return False, source
        # a (r I + v_leak - v_reset), or for an integrator r dt I
        with np.errstate(over="ignore"):
            weight = state.gain / state.leak if leaks else state.gain
        tensors = {"edge0": self._compact(weight, name)}
        if pull.any():
            tensors["offset"] = self._compact(pull, name)
        return leaks, self._add(f"{name}:r", "sum", source, self.graph[source].shape, {}, tensors)

    def _compact(self, values: np.ndarray, name: str) -> Tensor:
        """Returns constants of a layer's shape; one number with the same number of axes if all are equal."""
        full = self._tensor(values, name)
        return full.flatten()[:1].view([1] * full.ndim).clone() if bool((full == full.flatten()[0]).all()) else full

    def _lif(self, name: str, source: str, options: dict[str, Any], constants: dict[str, np.ndarray]) -> str:
        shape = self.graph[source].shape
        tensors = {what: neuron_constant(values, shape, self.dtype) for what, values in constants.items()}
        for what in ("threshold", "leak"):
            if tensors[what].ndim > 1:
                raise CannotFold(f"{name}: it has one {what} per neuron; one per layer or channel is expected")
        return self._add(name, "lif", source, shape, options, tensors)


def _misfit(name: str, weight: Tensor, shape: tuple[int, ...]) -> CannotFold:
    return CannotFold(f"{name}: weights {list(weight.shape)} do not match an input {list(shape)}")


def from_nir(source: Any, dt: float | None = None, dtype: torch.dtype | None = None) -> FoldedNetwork:
    """Returns the network of a NIR graph or file; it takes frames [T, B, ...].

    dt: seconds per time step; by default the graph's own, otherwise 1 for IF nodes with r = 1, otherwise 1e-4
    dtype: of the network; by default float64 if the graph has float64 weights, otherwise float32

    A file is read in a separate process with limits of memory and time (`nir_file`). A damaged file raises
    `DamagedFile`, and a graph that is not a folded network raises `CannotFold`, each with one line.
    """
    missing_package("nir", "export")
    if isinstance(source, (str, os.PathLike)):
        return network_of(read_nir_file(source), dt, os.path.basename(source), dtype)
    return network_of(source, dt, None, dtype)


def network_of(source: Any, dt: float | None, name: str | None, dtype: torch.dtype | None = None) -> FoldedNetwork:
    """Returns the network of a NIR graph.

    name: of the file that it came from
    """
    import nir

    if not isinstance(source, nir.NIRGraph):
        raise DamagedFile(f"{name or 'this'} is not a NIR graph, but a {type(source).__name__} node")
    try:
        return _Reader(source, seconds_per_step(source, dt), dtype).read()
    except CannotFold:
        raise
    except Exception as error:  # attributes of the file's nodes may be anything
        if name is None:
            raise
        what = f"{type(error).__name__}: {' '.join(str(error).split())[:120]}"
        raise DamagedFile(f"{name} is not a readable NIR file: {what}") from None
