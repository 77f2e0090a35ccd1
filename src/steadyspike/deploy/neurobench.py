"""NeuroBench's metrics of a folded network, and every difference from our own counts.

NeuroBench (2.3) finds layers by their class: `nn.Conv2d`, `nn.Linear` and the classes that it is given as neurons. A
`FoldedNetwork` contains none of these, so `LayeredNetwork` computes the same graph through such modules. The network is
folded first, so that V is part of the weights and a layer reads 0 and 1 instead of 0 and V.

The two differ in these points, per synapse (`compare`):

* borders: NeuroBench counts no operation for the zeros around a padded convolution; our MACs and dense numbers do;
* zeros: it skips inputs and weights that are exactly 0 also in layers that read real numbers;
* whole numbers and averages: if an input has any value other than -1, 0 and 1, NeuroBench counts all of a layer's
  operations as MACs, one for every nonzero input. We count one AC for every spike of such a sum or average (``shared``
  counts those after the first spike of an input);
* products of two activations (attention) and sums of spikes are not layers, so NeuroBench does not count them.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from steadyspike.deploy.energy import EnergyReport, LayerCount, count_operations, dense_operations, reached
from steadyspike.deploy.errors import CannotFold
from steadyspike.deploy.graph import Node
from steadyspike.deploy.kinds import REAL, value_kinds
from steadyspike.deploy.network import FoldedNetwork
from steadyspike.deploy.ops import CONVS, gained, inner_bias, lif, per_sample
from steadyspike.deploy.recurrent import refuse_recurrent
from steadyspike.nn.decision import decided

_CONVS: dict[int, Any] = {3: nn.Conv1d, 4: nn.Conv2d}
_SYNAPSES = ("conv", "linear")

# Causes of a difference (`Comparison.differences`).
ZEROS, BORDERS = "inputs or weights that are 0", "padded borders"
AVERAGES = "inputs that are sums or averages of spikes: ACs here, MACs there"
BINARY = "real inputs that are all -1, 0 or 1: MACs here, ACs there"
UNSEEN = "operations that are in no layer there"


class SpikingLayer(nn.Module):
    """A neuron layer of a folded network: [T, B, ...] current to spikes. NeuroBench's hooks read its output."""

    def __init__(self, node: Node) -> None:
        super().__init__()
        self.node = node
        for name, tensor in node.tensors.items():
            self.register_buffer(name, tensor)

    def forward(self, x: Tensor) -> Tensor:
        return lif(self.node, x)


class ReadoutLayer(SpikingLayer):
    """A layer that returns its potential, which is not a sparse activation."""


class LayeredNetwork(nn.Module):
    """A folded network as torch modules: one `nn.Conv1d`, `nn.Conv2d` or `nn.Linear` per synapse, one layer per neuron.

    It computes the same as the network, with the same operators. Constants that belong to no layer (gains, biases per
    step, weights of sums) are buffers, so parameters and buffers together are the network's memory.
    """

    def __init__(self, network: FoldedNetwork) -> None:
        super().__init__()
        refuse_recurrent(network.graph, "NeuroBench's layers compute all steps at once")
        self.layers = nn.ModuleDict()
        self._walk = (_Walk(network, self.layers),)  # a tuple, because constants must not be registered twice
        for node in map(network.node, network.graph.nodes):
            layer = _layer_of(node)
            if layer is not None:
                self.layers[_key(node)] = layer
            held = set() if layer is None else {name for name, _ in (*layer.named_parameters(), *layer.named_buffers())}
            for name, tensor in node.tensors.items():
                if name not in held:
                    self.register_buffer(f"{_key(node)}/{name}", tensor)

    def forward(self, x: Tensor, timesteps: int | None = None) -> Tensor:
        walk = self._walk[0]
        return walk.run(x, timesteps, neuron=lambda node, current: self.layers[_key(node)](current))


class _Walk(FoldedNetwork):
    """Runs a graph with torch modules instead of the synapses' functions."""

    def __init__(self, network: FoldedNetwork, layers: nn.ModuleDict) -> None:
        super().__init__(network.graph)
        self.load_state_dict(network.state_dict(), assign=True)
        self._layers = (layers,)

    def compute(self, node: Node, *values: Tensor) -> Tensor:
        if node.op not in _SYNAPSES:
            return super().compute(node, *values)
        layer = self._layers[0][_key(node)]
        y = per_sample(layer, values[0], node.timed)
        return y if inner_bias(node) is node.tensors.get("bias") else gained(node, y, last=node.op == "linear")


def _key(node: Node) -> str:
    """Returns the name of a node as a name of a module, which must not contain a dot."""
    return node.name.replace(".", "/")


def _layer_of(node: Node) -> nn.Module | None:
    """Returns the module that computes a node, with the node's own tensors; None for a node that is not a layer."""
    if node.op == "lif":
        return (ReadoutLayer if node.options["emit"] == "potential" else SpikingLayer)(node)
    if node.op not in _SYNAPSES:
        return None
    weight, bias, o = node.tensors["weight"], inner_bias(node), node.options
    layer: nn.Module
    if node.op == "linear":
        layer = nn.Linear(weight.shape[1], weight.shape[0], bias is not None, device="meta")
    else:
        channels = (weight.shape[1] * o["groups"], weight.shape[0])
        settings = (*channels, weight.shape[2:], o["stride"], o["padding"], o["dilation"], o["groups"])
        layer = _CONVS[weight.ndim](*settings, bias is not None, device="meta")
    layer.weight = _constant(weight)
    if bias is not None:
        layer.bias = _constant(bias)
    return layer


def _constant(tensor: Tensor) -> nn.Parameter:
    return nn.Parameter(tensor, requires_grad=False)


def neurobench_model(network: FoldedNetwork) -> Any:
    """A `NeuroBenchModel` of a folded network, for NeuroBench's own `Benchmark`: takes [B, ...] or [B, T, ...]."""
    from neurobench.models import NeuroBenchModel

    class Model(NeuroBenchModel):
        def __init__(self) -> None:
            super().__init__()
            self.net = LayeredNetwork(network)
            self.activation_modules = [SpikingLayer]

        @torch.no_grad()
        def __call__(self, x: Tensor) -> Tensor:
            out = self.net(x.transpose(0, 1) if network.graph.input.timed else x)
            return decided(out.mean(0) if network.graph[network.graph.output].timed else out)

        def __net__(self) -> nn.Module:
            return self.net

    return Model()


@dataclass
class SynapseCounts:
    """Operations of one layer, summed over the samples: ours, NeuroBench's, and the parts in which they differ.

    kind: what the layer reads (`deploy.kinds`). For ``spikes``, acs - zeros = their_acs. For ``real`` numbers, macs -
    borders - zeros = their_macs. For ``counts`` and ``pooled`` the units differ: we count one AC for every spike, they
    count one operation (usually a MAC) for every nonzero input. So acs - shared - zeros = their_acs + their_macs, in
    which ``shared`` is the ACs of all spikes but the first of each input. dense - borders = their dense number.
    """

    layer: str
    kind: str
    acs: float = 0.0
    macs: float = 0.0
    dense: float = 0.0
    borders: float = 0.0
    zeros: float = 0.0
    shared: float = 0.0
    their_acs: float = 0.0
    their_macs: float = 0.0

    def see(self, node: Node, x: Tensor) -> None:
        """Adds one batch; ``x`` is the value that the layer reads."""
        weight = node.tensors["weight"]
        dense = dense_operations(node, ()) * x.shape[0] * (x.shape[1] if node.timed else 1)
        inside = _pairs(node, torch.ones_like(x), torch.ones_like(weight))
        theirs = _pairs(node, (x != 0).to(x.dtype), (weight != 0).to(weight.dtype))
        self.borders += dense - inside
        if bool(((x == 0) | (x.abs() == 1)).all()):
            self.their_acs += theirs
        else:
            self.their_macs += theirs
        if self.kind == REAL:
            self.zeros += inside - theirs
        else:
            once = reached(node, (x != 0).to(x.dtype), node.timed)
            self.zeros += once - theirs
            self.shared -= once  # the ACs of all spikes are added when their number is available


def _pairs(node: Node, x: Tensor, weight: Tensor) -> float:
    """Returns the sum of the layer's output for these inputs and weights, without a bias.

    With inputs and weights of 0 and 1, this counts operations.
    """
    if node.op == "linear":
        return float(F.linear(x, weight).double().sum())
    o = node.options

    def apply(folded: Tensor) -> Tensor:
        return CONVS[weight.ndim](folded, weight, None, o["stride"], o["padding"], o["dilation"], o["groups"])

    return float(per_sample(apply, x, node.timed).double().sum())


@dataclass
class Comparison:
    """NeuroBench's results for a network, and ours by layer.

    theirs: what `Benchmark.run` returned
    synapses: layer by layer
    unseen: (ACs, MACs) per sample of products of activations and of sums of spikes, which are not layers for NeuroBench
    ours: the same metrics by our own counts
    """

    theirs: dict[str, Any]
    ours: dict[str, float]
    synapses: list[SynapseCounts]
    unseen: tuple[float, float]
    samples: int

    def differences(self) -> dict[str, dict[str, float]]:
        """For ACs, MACs and Dense, per sample, what must be added to our number to get NeuroBench's, by cause."""
        real = [s for s in self.synapses if s.kind == REAL]
        spiking = [s for s in self.synapses if s.kind != REAL]

        def per_sample_of(rows: list[SynapseCounts], what: str) -> float:
            return sum(getattr(row, what) for row in rows) / self.samples

        as_acs, as_macs = per_sample_of(real, "their_acs"), per_sample_of(spiking, "their_macs")
        unseen_dense = self.ours["Dense"] - per_sample_of(self.synapses, "dense")
        return {
            "ACs": {
                ZEROS: -per_sample_of(spiking, "zeros"),
                "further spikes of a sum or average, which is one input there": -per_sample_of(spiking, "shared"),
                AVERAGES: -as_macs,
                BINARY: as_acs,
                UNSEEN: -self.unseen[0],
            },
            "MACs": {
                BORDERS: -per_sample_of(real, "borders"),
                ZEROS: -per_sample_of(real, "zeros"),
                AVERAGES: as_macs,
                BINARY: -as_acs,
                UNSEEN: -self.unseen[1],
            },
            "Dense": {BORDERS: -per_sample_of(self.synapses, "borders"), UNSEEN: -unseen_dense},
        }


@torch.no_grad()
def compare(network: FoldedNetwork, x: Tensor, labels: Tensor, batch_size: int = 64) -> Comparison:
    """Runs NeuroBench's metrics and our counts on the same samples.

    x: [N, ...], or [T, N, ...] for frames

    Operations are counted on a float64 copy of the network, because NeuroBench adds them up in the network's own dtype
    and float32 cannot represent all numbers above 16,777,216. The memory is that of the unchanged network.
    """
    from neurobench.benchmarks import Benchmark
    from neurobench.metrics.static import ConnectionSparsity, Footprint, ParameterCount
    from neurobench.metrics.workload import ActivationSparsity, ClassificationAccuracy, SynapticOperations
    from torch.utils.data import DataLoader, TensorDataset

    timed = network.graph.input.timed
    exact = copy.deepcopy(network).double()
    samples = x.transpose(0, 1) if timed else x
    loader = DataLoader(TensorDataset(samples.double(), labels), batch_size)
    batches = [b.transpose(0, 1) if timed else b for b, _ in loader]
    report = count_operations(exact, batches)
    ours = own_metrics(network, report)
    static = Benchmark(neurobench_model(network), loader, [], [], [[ParameterCount, Footprint, ConnectionSparsity], []])
    metrics = [ClassificationAccuracy, ActivationSparsity, SynapticOperations]
    workload = Benchmark(neurobench_model(exact), loader, [], [], [[], metrics])
    theirs = {**static.static_metric_manager.run_metrics(static.model), **workload.run(quiet=True)}
    synapses = _by_synapse(exact, batches, {layer.name: layer for layer in report.layers})
    names = {s.layer for s in synapses}
    others = [layer for layer in report.layers if layer.name not in names]
    unseen = (sum(o.acs for o in others) / len(samples), sum(o.macs for o in others) / len(samples))
    return Comparison(theirs, ours, synapses, unseen, len(samples))


def _by_synapse(
    network: FoldedNetwork, batches: Iterable[Tensor], counts: dict[str, LayerCount]
) -> list[SynapseCounts]:
    kinds = value_kinds(network.graph)
    rows: dict[str, SynapseCounts] = {}
    values: dict[str, Tensor] = {}

    def watch(node: Node, value: Tensor) -> None:
        values[node.name] = value
        if node.op in _SYNAPSES:
            row = rows.setdefault(node.name, SynapseCounts(node.name, kinds[node.inputs[0]]))
            row.see(node, values[node.inputs[0]])

    for x in batches:
        values.clear()
        network.run(x, None, watch)
    for name, row in rows.items():
        row.acs, row.macs, row.dense = counts[name].acs, counts[name].macs, counts[name].dense
        row.shared = row.shared + row.acs if row.kind != REAL else 0.0
    return list(rows.values())


def own_metrics(network: FoldedNetwork, report: EnergyReport) -> dict[str, float]:
    """Returns NeuroBench's metrics by our own counts, under its names; operations per sample."""
    tensors = [t for node in network.graph for t in node.tensors.values()]
    weights = [node.tensors["weight"] for node in network.graph if node.op in _SYNAPSES]
    sizes = {node.name: math.prod(node.shape) for node in network.graph}
    fired = sum(sum(rates) * sizes[name] for name, rates in report.firing.items() if _spikes(network.graph[name]))
    neurons = sum(len(rates) * sizes[name] for name, rates in report.firing.items() if _spikes(network.graph[name]))
    if not (weights and neurons):
        raise CannotFold(f"the network has no {'neurons' if weights else 'weights'}, so it has no sparsity to measure")
    zeros = sum(int((weight == 0).sum()) for weight in weights)
    return {
        "Footprint": float(sum(t.numel() * t.element_size() for t in tensors)),
        "ConnectionSparsity": zeros / sum(weight.numel() for weight in weights),
        "ActivationSparsity": 1 - fired / neurons,
        "ACs": report.total("acs"),
        "MACs": report.total("macs"),
        "Dense": report.total("dense"),
    }


def _spikes(node: Node) -> bool:
    return node.options["emit"] != "potential"
