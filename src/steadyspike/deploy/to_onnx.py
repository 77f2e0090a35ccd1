"""ONNX export of a folded network: all time steps in one graph, or one step with explicit state."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from steadyspike.deploy.errors import CannotFold, missing_package
from steadyspike.deploy.network import FoldedNetwork, refuse_unfolded
from steadyspike.deploy.onnx_facts import add_facts, add_starts, onnx_facts
from steadyspike.deploy.ops import initial_potential, lif_steps
from steadyspike.deploy.recurrent import refuse_recurrent
from steadyspike.deploy.streamable import why_no_stream
from steadyspike.deploy.written import write_file


class OneStep(nn.Module):
    """One time step of a folded network with explicit state: ``(frame, *potentials) -> (output, *potentials)``.

    potentials: U of every neuron layer, [B, ...], in the order of ``names``; `start` returns those of the first step


    Networks with constants per time step have no single step and raise an error.
    """

    def __init__(self, network: FoldedNetwork) -> None:
        super().__init__()
        refuse_recurrent(network.graph, "export it without streaming")
        if network.steps_limit is not None:
            raise CannotFold("a network with constants per time step (TEBN, TAB, BNTT) has no single step to export")
        why_not = why_no_stream(network.graph)
        if why_not is not None:
            raise CannotFold(f"the network has no single step to export: {why_not}")
        self.network = network
        self.names = [node.name for node in network.graph.neurons()]
        if not self.names:
            raise CannotFold("a network without neurons has no state to stream: export it without streaming")

    def start(self, batch: int) -> list[Tensor]:
        """Returns U[0] of every layer for a batch of this size."""
        potentials = []
        for name in self.names:
            node = self.network.node(name)
            like = node.tensors["threshold"].new_empty(1, batch, *node.shape)
            potentials.append(initial_potential(node, like).clone())
        return potentials

    def forward(self, frame: Tensor, *potentials: Tensor) -> tuple[Tensor, ...]:
        state = dict(zip(self.names, potentials))

        def neuron(name: str, current: Tensor) -> Tensor:
            out, state[name] = lif_steps(self.network.node(name), current, state[name])
            return out

        return (self.network.run_step(frame, 0, neuron), *(state[name] for name in self.names))


@contextmanager
def _quietly() -> Iterator[None]:
    """Suppresses warnings of torch's exporter that torchvision is missing and that its own internals are deprecated."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def export_onnx(
    network: FoldedNetwork,
    path: str | os.PathLike[str],
    *,
    streaming: bool = False,
    batch: int = 2,
    extra: dict[str, Any] | None = None,
) -> Path:
    """Writes ``network`` as ONNX; the batch size stays free, and T is that of the network.

    streaming: write one time step with inputs ``frame, u_<i>`` and outputs ``output, u_<i>_next``. The potentials u_<i>
        have those of the first step as defaults, so that the first call needs only the frame.
    extra: stored in the file's metadata under ``steadyspike`` with the number of steps and the names of the states
        (class names, how images are scaled)


        `onnx_facts.usage` is a program that runs the file without this library.
    """
    refuse_unfolded(network)
    for package in ("onnx", "onnxscript"):
        missing_package(package, "export")
    node = network.graph.input
    like = next(network.buffers())
    size = torch.export.Dim("batch", min=1)
    module: nn.Module
    args: tuple[Tensor, ...]
    if streaming:
        one = OneStep(network)
        module, args = one, (like.new_zeros(batch, *node.shape), *one.start(batch))
        inputs = ["frame", *(f"u_{i}" for i in range(len(one.names)))]
        outputs = ["output", *(f"u_{i}_next" for i in range(len(one.names)))]
        shapes: dict[str, Any] = {"frame": {0: size}, "potentials": tuple({0: size} for _ in one.names)}
    else:
        lead = (network.graph.timesteps, batch) if node.timed else (batch,)
        module, args = network, (like.new_zeros(*lead, *node.shape),)
        inputs, outputs, shapes = ["input"], ["output"], {"x": {len(lead) - 1: size}}
    with _quietly():
        program = torch.onnx.export(
            module.eval(),
            args,
            dynamo=True,
            input_names=inputs,
            output_names=outputs,
            dynamic_shapes=shapes,
            verbose=False,
        )
    assert program is not None
    model = program.model_proto
    if streaming:
        add_starts(model, one.start(1))
    add_facts(model, onnx_facts(network, one.names if streaming else None, extra))
    return write_file(path, model.SerializeToString())
