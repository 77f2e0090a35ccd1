"""`FoldedNetwork`: an inference network made from a `Graph`, as a torch module."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, nn

from steadyspike.deploy.graph import Graph, Node
from steadyspike.deploy.ops import OPS, lif, lif_steps
from steadyspike.deploy.recurrent import Past, loops

Watch = Callable[[Node, Tensor], None]


class FoldedNetwork(nn.Module):
    """Runs a graph: maps [B, ...] (a static image) or [T, B, ...] (frames) to the model's output.

    The constants are buffers, so ``.to(dtype)``, ``.to(device)`` and ``state_dict`` work as on any module.
    """

    def __init__(self, graph: Graph) -> None:
        super().__init__()
        self.graph = graph
        self.proofs: list[object] = []  # the results of `fold`'s comparison with the model
        self.is_recurrent = bool(loops(graph))
        # The largest number of time steps this network can run; None: any number.
        self.steps_limit = min((t.shape[0] for n in graph for t in n.tensors.values() if per_step(n, t)), default=None)
        self._keys: dict[tuple[str, str], str] = {}
        for node in graph:
            for what, tensor in node.tensors.items():
                key = f"{node.name}.{what}".replace(".", "/")
                self.register_buffer(key, tensor)
                self._keys[node.name, what] = key

    def node(self, name: str) -> Node:
        """Returns a node with its constants on the module's current device and dtype."""
        node = self.graph[name]
        now = {what: getattr(self, self._keys[name, what]) for what in node.tensors}
        return replace(node, tensors=now)

    def forward(self, x: Tensor, timesteps: int | None = None) -> Tensor:
        return self.run(x, timesteps)

    def run(
        self,
        x: Tensor,
        timesteps: int | None = None,
        watch: Watch | None = None,
        neuron: Callable[[Node, Tensor], Tensor] = lif,
    ) -> Tensor:
        """Returns the output for ``x``.

        ``watch(node, value)`` is called with every value when it is computed.

        neuron: the function that computes a layer
        """
        steps = self.check_input(x, timesteps)
        if self.is_recurrent:
            return self._run_steps(x, steps, watch)
        return self._evaluate(x, steps, lambda name, current: neuron(self.node(name), current), self.node, watch)

    def _run_steps(self, x: Tensor, steps: int, watch: Watch | None) -> Tensor:
        """Does `run` for a recurrent network: one time step after the other, with `ops.lif_steps` for the neurons."""
        past, state = Past(self.graph), dict[str, Tensor]()
        outs: list[Tensor] = []
        seen: dict[str, list[Tensor]] = {}

        def neuron(name: str, current: Tensor) -> Tensor:
            out, state[name] = lif_steps(self.node(name), current, state.get(name))
            return out

        for step in range(steps):
            frame = x[step] if self.graph.input.timed else x
            each = None if watch is None else lambda node, value: seen.setdefault(node.name, []).append(value)
            outs.append(self.run_step(frame, step, neuron, past, each))
        if watch is not None:
            for name, values in seen.items():
                node = self.node(name)
                watch(node, torch.cat(values) if node.timed else values[0])
        return torch.stack(outs)

    def run_step(
        self,
        frame: Tensor,
        step: int,
        neuron: Callable[[str, Tensor], Tensor],
        past: Past | None = None,
        watch: Watch | None = None,
    ) -> Tensor:
        """The output [B, ...] of step ``step`` for one frame [B, ...]; ``neuron(name, current)`` stores the state.

        past: the values of earlier steps, which a recurrent network reads and extends
        """
        timed = self.graph.input.timed
        self.check_input(frame[None] if timed else frame)

        def at_step(name: str) -> Node:
            node = self.node(name)
            now = {what: t[step : step + 1] if per_step(node, t) else t for what, t in node.tensors.items()}
            return replace(node, tensors=now)

        out = self._evaluate(frame[None] if timed else frame, 1, neuron, at_step, watch, past)
        return out[0] if self.graph[self.graph.output].timed else out

    def _evaluate(
        self,
        x: Tensor,
        steps: int,
        neuron: Callable[[str, Tensor], Tensor],
        node_of: Callable[[str], Node],
        watch: Watch | None = None,
        past: Past | None = None,
    ) -> Tensor:
        values: dict[str, Tensor] = {}
        kept = {self.graph.output} | (set() if past is None else past.names)
        last = {name: node.name for node in self.graph for name in node.inputs}
        for name in self.graph.nodes:
            node = node_of(name)
            if node.op == "input":
                value = x
            elif node.op == "previous":
                assert past is not None, "a recurrent network runs step by step"
                value = past.read(node, x.shape[1 if self.graph.input.timed else 0], x)
            elif node.op == "repeat":
                value = OPS["repeat"].compute(node, values[node.inputs[0]], steps)
            elif node.op == "lif":
                value = neuron(name, values[node.inputs[0]])
            else:
                value = self.compute(node, *(values[i] for i in node.inputs))
            if watch is not None:
                watch(node, value)
            values[name] = value
            for used in set(node.inputs):
                if last[used] == name and used not in kept:
                    del values[used]
        if past is not None:
            past.keep(values)
        return values[self.graph.output]

    def compute(self, node: Node, *values: Tensor) -> Tensor:
        """Returns the value of a node that is neither the input nor a neuron layer."""
        return OPS[node.op].compute(node, *values)

    def check_input(self, x: Tensor, timesteps: int | None = None) -> int:
        """Returns T of this call; raises an error for an input of another shape than the network was folded for."""
        node = self.graph.input
        lead = 2 if node.timed else 1
        if x.ndim != len(node.shape) + lead or tuple(x.shape[lead:]) != node.shape:
            axes = ", ".join(map(str, (*(("T",) if node.timed else ()), "B", *node.shape)))
            raise ValueError(f"the folded network takes [{axes}], got shape {list(x.shape)}")
        if not x.is_floating_point():
            raise TypeError(f"the folded network takes floating-point input, got {x.dtype}; convert it as for training")
        weights = next((node for node in self.graph if node.op in ("conv", "linear")), None)
        dtype = x.dtype if weights is None else self.node(weights.name).tensors["weight"].dtype
        if x.dtype != dtype:
            raise TypeError(f"the folded network computes in {dtype}, the input is {x.dtype}; call x.to({dtype})")
        steps = x.shape[0] if node.timed else self.graph.timesteps if timesteps is None else timesteps
        limit = self.steps_limit
        if limit is not None and steps > limit:
            raise ValueError(f"the network has constants for {limit} time steps and cannot run {steps}")
        return steps

    def takes_still(self, x: Tensor) -> bool:
        """Returns True if ``x`` is a static batch [B, ...] for a network that repeats it."""
        node = self.graph.input
        return not node.timed and x.ndim == len(node.shape) + 1

    def extra_repr(self) -> str:
        layers, nodes = len(self.graph.neurons()), len(self.graph.nodes)
        return f"{layers} neuron layer{'s' * (layers != 1)}, {nodes} nodes, timesteps={self.graph.timesteps}"


def per_step(node: Node, tensor: Tensor) -> bool:
    """Returns True for constants [T, C] that differ from step to step."""
    return node.op in ("conv", "linear", "affine") and any(
        tensor is node.tensors.get(name) and tensor.ndim == 2 for name in ("gain", "bias")
    )


@torch.no_grad()
def refuse_unfolded(network: object) -> None:
    """Raises a TypeError that names `fold` if ``network`` is a model that was not folded."""
    if not isinstance(network, FoldedNetwork):
        raise TypeError(f"this takes a folded network, got {type(network).__name__}; call ss.deploy.fold first")


def spikes_of_layers(
    network: FoldedNetwork, x: Tensor, timesteps: int | None = None
) -> tuple[dict[str, Tensor], Tensor]:
    """Returns spikes (bool) of every neuron layer by name, and the output."""
    seen: dict[str, Tensor] = {}

    def watch(node: Node, value: Tensor) -> None:
        if node.op == "lif" and node.options["emit"] != "potential":
            seen[node.name] = value > 0

    out = network.run(x, timesteps, watch)
    return seen, out
