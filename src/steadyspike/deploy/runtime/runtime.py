"""`compile`: a folded network as a program for CPUs, with bits between its layers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from steadyspike.deploy.graph import Graph, Node
from steadyspike.deploy.network import FoldedNetwork, refuse_unfolded
from steadyspike.deploy.ops import OPS
from steadyspike.deploy.recurrent import refuse_recurrent
from steadyspike.deploy.runtime.layer_call import WAYS, NotANumber, Way, bits_of, costs_here, numbers_of, run
from steadyspike.deploy.runtime.native_layer import layer_library, window_means
from steadyspike.deploy.runtime.packed_constants import LayerConstants, layer_constants
from steadyspike.deploy.runtime.plan import Layer, OnBits, Plan
from steadyspike.deploy.runtime.values import Bits, Value, from_memory
from steadyspike.deploy.runtime.ways import Report, describe
from steadyspike.kernels.library import instruction_sets

Watch = Callable[[Node, Value], None]


def compile(network: FoldedNetwork, *, way: Way = "auto", instructions: str | None = None) -> Runtime:
    """Returns a program that computes ``network``'s outputs on a CPU: ``program(x)``, ``program(x, timesteps=...)``.

    way: ``"auto"`` decides in every call and for every convolution which is faster, by the number of spikes: adding up
        the weights of the neurons that fired, or the dense convolution. ``"events"`` and ``"dense"`` always use that
        way.
    instructions: an instruction set that the machine has, such as ``"base"`` or ``"avx2"``; None: the best


    Threads are torch's (``torch.set_num_threads``). Constants are copied, so later changes of ``network`` have no
    effect.
    """
    refuse_unfolded(network)
    if way not in WAYS:
        raise ValueError(f"unknown way {way!r}; known: {', '.join(WAYS)}")
    refuse_recurrent(network.graph, "call the network itself; the CPU runtime computes all steps of a layer at once")
    library = layer_library()
    if isinstance(library, str):
        raise RuntimeError(f"the CPU runtime cannot run here: {library}")
    sets = instruction_sets(library)
    if instructions is not None and instructions not in sets:
        raise ValueError(f"this machine has no instruction set {instructions!r}; it has: {', '.join(sets)}")
    for name, constant in network.named_buffers():
        if constant.dtype != torch.float32 or constant.device.type != "cpu":
            raise TypeError(
                f"the CPU runtime computes in float32, {name} is {constant.dtype} on {constant.device}; "
                "call network.float().cpu() first"
            )
        if not bool(torch.isfinite(constant).all()):
            raise ValueError(f"the constant {name} is not finite")
    return Runtime(network, way, -1 if instructions is None else sets.index(instructions))


@dataclass
class _Call:
    """The values of one call, computed when they are needed."""

    runtime: Runtime
    steps: int
    samples: int
    watch: Watch | None
    values: dict[str, Value]
    ways: dict[str, str] = field(default_factory=dict)
    rates: dict[str, float] = field(default_factory=dict)

    def read(self, name: str) -> Value:
        if name not in self.values:
            self.values[name] = self._compute(name)
        return self.values[name]

    def _compute(self, name: str) -> Value:
        runtime, node = self.runtime, self.runtime.graph[name]
        step = runtime.plan.steps[name]
        value: Value
        if isinstance(step, Layer):
            constants = runtime.constants[name]
            value, ways = run(constants, self.steps, self.samples, self.read, runtime.way, runtime.costs, runtime.isa)
            self.ways |= {synapse.name: way for synapse, way in zip(step.synapses, ways)}
            if isinstance(value, Bits):
                self.rates[name] = value.rate
        elif isinstance(step, OnBits):
            value = on_bits(node, [bits_of(self.read(i)) for i in node.inputs])
        else:
            inputs = [numbers_of(self.read(i)) for i in node.inputs]
            extra = (self.steps,) if node.op == "repeat" else ()
            value = OPS[node.op].compute(node, *inputs, *extra)
        if self.watch is not None:
            self.watch(node, value)
        return value


class Runtime:
    """A folded network prepared for this machine; see `compile`.

    last_ways, last_rates: for the last call, whether every synapse ran by events, and the firing rate of every layer
    """

    def __init__(self, network: FoldedNetwork, way: Way, isa: int) -> None:
        self.network, self.way, self.isa = network, way, isa
        self.graph = _copied(network)
        self.plan = Plan(self.graph)
        self.costs = costs_here()
        self.constants: dict[str, LayerConstants] = {
            name: layer_constants(step, isa) for name, step in self.plan.steps.items() if isinstance(step, Layer)
        }
        self._last_readers = self.plan.last_readers()
        self.last_ways: dict[str, str] = {}
        self.last_rates: dict[str, float] = {}

    def __call__(self, x: Tensor, timesteps: int | None = None) -> Tensor:
        """Maps [B, ...] or [T, B, ...] to the network's output, as `FoldedNetwork` does."""
        return self.run(x, timesteps)

    @torch.no_grad()
    def run(self, x: Tensor, timesteps: int | None = None, watch: Watch | None = None) -> Tensor:
        """Returns the output for ``x``; ``watch(node, value)`` is called with every value when it is computed."""
        steps = self.network.check_input(x, timesteps)
        node = self.graph.input
        samples = x.shape[1] if node.timed else x.shape[0]
        if samples == 0:
            return self.network.run(x, timesteps)
        if len(node.shape) == 3 and not node.timed:
            x = x.contiguous(memory_format=torch.channels_last)
        call = _Call(self, steps, samples, watch, {node.name: x.detach().float().cpu()})
        try:
            for name in self.plan.needed:
                call.read(name)
                self._release(call, name)
        except NotANumber:
            return self.network.run(x, timesteps)  # computed again by the folded network, which handles NaN
        self.last_ways, self.last_rates = call.ways, call.rates
        return numbers_of(call.values[self.graph.output])

    def _release(self, call: _Call, done: str) -> None:
        for name, last in self._last_readers.items():
            if last == done and name != self.graph.output:
                call.values.pop(name, None)

    def report(self) -> Report:
        """Returns how every node runs, and which of them run in plain PyTorch instead."""
        return describe(self.plan, self.last_ways, self.last_rates)

    def __repr__(self) -> str:
        return f"Runtime({self.network.extra_repr()})"


def _copied(network: FoldedNetwork) -> Graph:
    """Returns the graph with the network's current constants."""
    graph = Graph(network.graph.timesteps)
    for node in network.graph:
        now = network.node(node.name)
        now.tensors.update({what: tensor.detach().clone() for what, tensor in now.tensors.items()})
        graph.nodes[node.name] = now
    graph.output = network.graph.output
    return graph


def on_bits(node: Node, inputs: list[Bits]) -> Value:
    bits = inputs[0]
    if node.op == "reshape":
        return bits.viewed(node.shape)
    if node.op == "concat":
        return Bits(torch.cat([i.words for i in inputs], -1), node.shape)
    if node.op == "max_pool":
        return Bits(_any_in_window(bits.words, node), node.shape)
    if node.op == "avg_pool":
        o = node.options
        kernel, stride, padding = ((o[name][0], o[name][1]) for name in ("kernel_size", "stride", "padding"))
        means = window_means(bits.words, bits.shape[0], kernel, stride, padding, o["count_include_pad"])
        return from_memory(means, node.shape)
    means = window_means(bits.words, bits.shape[0], (bits.shape[1], bits.shape[2]))  # over all pixels
    return from_memory(means, (bits.shape[0], 1, 1)).flatten(2).unflatten(2, node.shape)


def _any_in_window(words: Tensor, node: Node) -> Tensor:
    """Returns the OR of the words [B, T, H, W, n] of each window."""
    o = node.options
    (kh, kw), (sh, sw), (ph, pw), (dh, dw) = (o[name] for name in ("kernel_size", "stride", "padding", "dilation"))
    rows, columns = node.shape[1:]
    if ph or pw:
        words = F.pad(words, (0, 0, pw, pw, ph, ph))
    out: Tensor | None = None
    for i in range(kh):
        for j in range(kw):
            top, left = i * dh, j * dw
            part = words[:, :, top : top + (rows - 1) * sh + 1 : sh, left : left + (columns - 1) * sw + 1 : sw]
            out = part.clone(memory_format=torch.contiguous_format) if out is None else out.bitwise_or_(part)
    assert out is not None
    return out
