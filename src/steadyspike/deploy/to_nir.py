"""NIR export of a folded network: graphs that other simulators and hardware tools read.

NIR's LIF node fires at v > threshold, resets to a value and starts at 0. Three modes:

``"faithful"``: exact. A soft reset is LI -> Threshold with a feedback edge Threshold -> Scale(-(tau - 1) V) -> LI. A
    hard reset is a plain LIF node. An initial potential is a one-off current through Scale((tau - 1) U[0]). It comes
    from an extra input per neuron layer (named ``<layer>_start``), to be fed with 1 at the first step and 0 afterwards.
``"shift"``: exact, only for layers with a hard reset; one plain LIF node per layer and no extra inputs. The node
    measures its potential from U[0]: v = U - U[0], so v_leak = v_reset = -U[0], v_threshold = V - U[0], and it starts
    at 0. This needs a simulator that starts at 0 and supports v_leak and v_reset. A soft reset raises an error.
``"lif"``: one plain LIF node per layer, with U[0] and the reset in its metadata; a warning lists what is lost.

M >= V becomes v > the largest number below V, so that potentials exactly at V fire in both.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor

from steadyspike.deploy.errors import CannotFold, missing_package
from steadyspike.deploy.graph import Node
from steadyspike.deploy.network import FoldedNetwork, per_step, refuse_unfolded
from steadyspike.deploy.recurrent import loops

if TYPE_CHECKING:
    import nir

Mode = Literal["faithful", "shift", "lif"]
MODES: tuple[Mode, ...] = ("faithful", "shift", "lif")
DT = 1e-4  # seconds per time step, the default of SpikingJelly's and snnTorch's importers
WRITER = "steadyspike"  # in the metadata of our graphs
SUFFIXES = ("_start", "_start_scale", "_membrane", "_reset")


def nir_names(names: Iterable[str]) -> dict[str, str]:
    """For every node a unique name that every NIR tool accepts and that differs from the nodes that export adds."""
    by_node: dict[str, str] = {}
    taken = {"input", "output"}
    for name in names:
        plain = base = name.replace(".", "_").replace(":", "_") or "model"
        i = 1
        while {plain, *(plain + suffix for suffix in SUFFIXES)} & taken:
            i += 1
            plain = f"{base}_{i}"
        taken |= {plain, *(plain + suffix for suffix in SUFFIXES)}
        by_node[name] = plain
    return by_node


def _full(node: Node, what: str) -> np.ndarray:
    """Returns a neuron constant as float64 of the layer's shape."""
    t = node.tensors[what].double()
    t = t[0] if t.ndim > len(node.shape) else t.view(-1, *([1] * (len(node.shape) - 1)))
    return t.expand(node.shape).contiguous().numpy()


def _array(tensor: Tensor) -> np.ndarray:
    """Converts a tensor for NumPy, which has no bfloat16."""
    return (tensor if tensor.dtype in (torch.float32, torch.float64) else tensor.float()).numpy()


def next_number(values: np.ndarray, towards: float, dtype: torch.dtype) -> np.ndarray:
    """Returns the neighbours of ``values`` in the direction ``towards``, among the numbers of ``dtype``, as float64."""
    kept = np.float64 if dtype == torch.float64 else np.float32
    return np.nextafter(values.astype(kept), kept(towards)).astype(np.float64)


class _Writer:
    def __init__(self, network: FoldedNetwork, mode: Mode, dt: float) -> None:
        self.network, self.mode, self.dt = network, mode, dt
        self.names = nir_names(network.graph.nodes)
        self.nodes: dict[str, Any] = {}
        self.edges: list[tuple[str, str]] = []
        self.outputs: dict[str, list[str]] = {}  # our node -> the NIR nodes whose sum is its value
        self.lost: list[str] = []

    def put(self, name: str, node: Any, *sources: str) -> str:
        import nir

        self.nodes[name] = node
        for i, source in enumerate(sources):
            # NIR does not allow the same edge twice; a value that is added twice gets a separate path
            if source in sources[:i]:
                shape = np.asarray(next(iter(self.nodes[source].output_type.values())))
                source = self.put(f"{name}_again{i}", nir.Scale(np.ones(shape)), source)
            self.edges.append((source, name))
        return name

    def scaled(self, node: Node, i: int) -> list[str]:
        """Returns the value of input ``i`` of a sum, through a Scale node if its edge has a constant."""
        sources, edge = self.outputs[node.inputs[i]], node.tensors.get(f"edge{i}")
        if edge is None:
            return sources
        import nir

        scale = edge.double().expand(node.shape).contiguous().numpy()
        return [self.put(f"{self.names[node.name]}_edge{i}", nir.Scale(scale), *sources)]

    def write(self) -> nir.NIRGraph:
        import nir

        graph = self.network.graph
        for name in graph.nodes:
            node = self.network.node(name)
            self.outputs[name] = self._node(node, nir)
        for node in loops(graph):
            for source in self.outputs[node.options["of"]]:
                self.edges.append((source, self.names[node.name]))
        out = graph[graph.output]
        self.put("output", nir.Output({"output": np.array(out.shape)}), *self.outputs[graph.output])
        metadata = {"timesteps": graph.timesteps, "dt": self.dt, "mode": self.mode, "writer": WRITER}
        return nir.NIRGraph(self.nodes, self.edges, metadata)

    def _node(self, node: Node, nir: Any) -> list[str]:
        if any(per_step(node, t) for t in node.tensors.values()):
            raise CannotFold(f"{node.name}: NIR has no constants that differ from step to step")
        name = self.names[node.name]
        sources = self.outputs[node.inputs[0]] if node.inputs else []
        if node.op == "input":
            return [self.put("input", nir.Input({"input": np.array(node.shape)}))]
        if node.op == "repeat":
            return sources
        if node.op == "previous":  # its edge is added when every node has been written
            return [self.put(name, nir.Delay(np.full(node.shape, node.options["steps"] * self.dt)))]
        if node.op == "sum" and "offset" not in node.tensors:
            return [source for i in range(len(node.inputs)) for source in self.scaled(node, i)]
        if node.op == "lif":
            return [self._neuron(node, name, sources, nir)]
        made = self._layer(node, nir)
        if made is None:
            raise CannotFold(f"{node.name}: NIR has no node for {node.op}")
        for i, part in enumerate(made):
            sources = [self.put(name if i == 0 else f"{name}_{i}", part, *sources)]
        return sources

    def _layer(self, node: Node, nir: Any) -> list[Any] | None:
        """Returns the sequence of NIR nodes for a layer without state; None if NIR has none."""
        o, shape = node.options, self.network.graph[node.inputs[0]].shape
        if node.op in ("conv", "linear"):
            weight = _array(node.tensors["weight"])
            bias = _array(node.tensors["bias"]) if "bias" in node.tensors else np.zeros(weight.shape[0], weight.dtype)
            if node.op == "linear":
                return [nir.Affine(weight, bias)] if len(node.shape) == 1 else None
            geometry = (tuple(o["stride"]), tuple(o["padding"]), tuple(o["dilation"]))
            if weight.ndim == 3:  # NIR's Conv1d has numbers
                return [nir.Conv1d(shape[1], weight, *(axes[0] for axes in geometry), o["groups"], bias)]
            if weight.ndim != 4:
                return None
            return [nir.Conv2d(shape[1:], weight, *geometry, o["groups"], bias)]
        if (
            node.op == "avg_pool"
            and len(o["stride"]) == 2
            and not o["ceil_mode"]
            and (o["count_include_pad"] or not any(o["padding"]))
        ):
            return [nir.AvgPool2d(*(np.array(o[k]) for k in ("kernel_size", "stride", "padding")))]
        if node.op == "mean" and o["axes"] == [1, 2] and len(shape) == 3 and not o["keep"]:
            pool = nir.AvgPool2d(np.array(shape[1:]), np.array(shape[1:]), np.array([0, 0]))
            return [pool, nir.Flatten({"input": np.array([shape[0], 1, 1])}, 0, -1)]
        if node.op == "reshape" and len(node.shape) == 1:
            return [nir.Flatten({"input": np.array(shape)}, 0, -1)]
        return None

    def _neuron(self, node: Node, name: str, sources: list[str], nir: Any) -> str:
        o = node.options
        leak, v, start = (_full(node, what) for what in ("leak", "threshold", "start"))
        if leak.any() and not (leak > 0).all():
            raise CannotFold(f"{node.name}: some of its neurons have a leak and some do not; NIR has no such node")
        if o["reset"] == "none" or not leak.any():
            return self.put(name, self._simple(node, leak, v, start, nir), *sources)
        tau = 1 / leak
        r = np.ones_like(tau) if o["decay_input"] else tau
        fire = v if o["strict"] else next_number(v, -np.inf, node.tensors["threshold"].dtype)
        zero = np.zeros_like(tau)
        back = (tau - 1) / r  # an amount subtracted from U at t equals this current at t + 1
        kind = {"kind": "lif", "soft": int(o["reset"] == "soft"), "strict": int(o["strict"])}
        if self.mode == "lif":
            if o["reset"] == "soft":
                self.lost.append(f"{node.name}: soft reset")
            if start.any():
                self.lost.append(f"{node.name}: initial potential")
            metadata = {**kind, "v_init": start, "reset": "subtract" if o["reset"] == "soft" else "zero"}
            return self.put(name, nir.LIF(tau * self.dt, r, zero, fire, zero, metadata=metadata), *sources)
        if self.mode == "shift":
            if o["reset"] == "soft":
                raise CannotFold(
                    f"{node.name}: a soft reset cannot be written in mode 'shift'; export it with mode 'faithful'"
                )
            return self.put(name, nir.LIF(tau * self.dt, r, -start, fire - start, -start, metadata=kind), *sources)
        first = list(sources)
        if start.any():
            extra = self.put(f"{name}_start", nir.Input({"input": np.array(node.shape)}))
            first.append(self.put(f"{name}_start_scale", nir.Scale(back * start), extra))
        if o["reset"] == "hard":
            return self.put(name, nir.LIF(tau * self.dt, r, zero, fire, zero, metadata=kind), *first)
        feedback = f"{name}_reset"
        self.put(f"{name}_membrane", nir.LI(tau * self.dt, r, zero, metadata=kind), *first, feedback)
        self.put(name, nir.Threshold(fire, metadata=kind), f"{name}_membrane")
        self.put(feedback, nir.Scale(-back * v), name)
        return name

    def _simple(self, node: Node, leak: np.ndarray, v: np.ndarray, start: np.ndarray, nir: Any) -> Any:
        """A readout, whose output is its potential (LI, without leak I), or a neuron without leak (IF)."""
        o, per_second, leaks = node.options, np.full(leak.shape, 1 / self.dt), bool(leak.any())
        if start.any():
            raise CannotFold(f"{node.name}: NIR's LI, I and IF start at 0, this layer does not")
        if o["emit"] == "potential" and o["reset"] == "none":
            if not leaks:
                return nir.I(per_second)
            return nir.LI(self.dt / leak, np.ones_like(leak) if o["decay_input"] else 1 / leak, np.zeros_like(leak))
        if leaks or o["reset"] != "hard" or o["decay_input"]:
            raise CannotFold(f"{node.name}: NIR has no neuron with a reset of {o['reset']!r} and this leak")
        fire = v if o["strict"] else next_number(v, -np.inf, node.tensors["threshold"].dtype)
        return nir.IF(per_second, fire, np.zeros_like(v), metadata={"kind": "if", "strict": int(o["strict"])})


def to_nir(network: FoldedNetwork, mode: Mode = "faithful", dt: float = DT) -> nir.NIRGraph:
    """Returns the NIR graph of a folded network; see the module for the modes.

    dt: seconds per time step
    """
    refuse_unfolded(network)
    if mode not in MODES:
        raise ValueError(f"unknown mode {mode!r}; known: {', '.join(MODES)}")
    missing_package("nir", "export")
    writer = _Writer(network, mode, dt)
    graph = writer.write()
    if writer.lost:
        warnings.warn("plain LIF nodes cannot represent: " + "; ".join(writer.lost), stacklevel=2)
    return graph


def export_nir(network: FoldedNetwork, path: str | os.PathLike[str], mode: Mode = "faithful", dt: float = DT) -> Path:
    """Writes the NIR graph of ``network`` to a file (HDF5)."""
    missing_package("nir", "export")
    import nir

    graph = to_nir(network, mode, dt)
    nir.write(str(path), graph)
    return Path(path)
