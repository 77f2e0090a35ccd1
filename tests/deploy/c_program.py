"""Compiles an exported C file, runs it on inputs and reads the spikes and scores that it writes."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np
import torch

from steadyspike.deploy.integers import IntegerNetwork
from steadyspike.deploy.network import spikes_of_layers
from steadyspike.deploy.standalone import lower
from steadyspike.deploy.standalone.c_file import export_c
from steadyspike.deploy.standalone.c_types import word_bits, words

STRICT = ["-std=c99", "-pedantic", "-Wall", "-Wextra", "-Wconversion", "-Werror"]


def compiler():
    return next((path for name in ("gcc", "cc", "clang") if (path := shutil.which(name))), None)


class CProgram:
    """A folded network as a C program. command: the compiler with its target; before: what runs the program."""

    def __init__(
        self, network, folder: Path, integer=True, command=None, flags=("-O2",), before=(), name="net"
    ) -> None:
        self.network, self.program = network, lower(network, name, integer=integer)
        self.export = export_c(network, folder, name, integer=integer, main=True)
        self.binary = folder / f"{name}.bin"
        command = command or [compiler()]
        subprocess.run([*command, *STRICT, *flags, str(self.export.source), "-o", str(self.binary)], check=True)
        self.before = list(before)

    def run(self, x: torch.Tensor, steps: int, *more: str) -> bytes:
        """Everything the program writes for inputs [B, ...] or frames [T, B, ...]."""
        data = x.transpose(0, 1) if self.program.takes_frames else x
        done = subprocess.run(
            [*self.before, str(self.binary), str(steps), *more],
            input=data.contiguous().numpy().astype("<f4").tobytes(),
            capture_output=True,
            check=True,
        )
        return done.stdout

    def spikes(self, x: torch.Tensor, steps: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """Spikes [T, B, ...] (bool) of every layer by name, and scores [T, B, classes]."""
        batch = x.shape[1] if self.program.takes_frames else x.shape[0]
        layers = [layer for layer in self.program.layers if layer.out.kind == "bits"]
        fields = [
            (f"{i}", f"<u{word_bits(o.out.grid[0]) // 8}", (o.out.grid[1] * o.out.grid[2], words(o.out)))
            for i, o in enumerate(layers)
        ]
        fields.append(("scores", "<f4", (self.program.output.size,)))
        table = np.frombuffer(self.run(x, steps), np.dtype(fields)).reshape(batch, steps)
        spikes = {}
        for i, layer in enumerate(layers):
            channels, height, width = layer.out.grid
            bits = np.unpackbits(
                np.ascontiguousarray(table[f"{i}"]).view(np.uint8).reshape(batch, steps, height * width, -1),
                axis=-1,
                bitorder="little",
            )[..., :channels]
            assert bits.shape[-1] == channels
            value = bits.transpose(1, 0, 3, 2).reshape(steps, batch, *self.network.graph[layer.name].shape)
            spikes[layer.name] = value.astype(bool)
        return spikes, table["scores"].transpose(1, 0, 2)


def reference(network, x, steps, integer):
    """Spikes by layer and scores of the folded network, or of its integer network."""
    given = None if network.graph.input.timed else steps
    if not integer:
        spikes, out = spikes_of_layers(network, x, given)
        return {name: s.numpy() for name, s in spikes.items()}, out.numpy()
    seen = {}

    def watch(node, value):
        if node.op == "lif" and node.options["emit"] == "spikes":
            seen[node.name] = (value > 0).numpy()

    return seen, IntegerNetwork(network).run(x, given, watch).numpy()


def differing(c: CProgram, x, steps, integer):
    """How many spikes differ from the reference, how many there are, and the largest difference of the scores."""
    spikes, scores = c.spikes(x, steps)
    expected, out = reference(c.network, x, steps, integer)
    assert set(spikes) == set(expected)
    wrong = sum(int((spikes[name] != expected[name]).sum()) for name in spikes)
    fired = sum(int(expected[name].sum()) for name in spikes)
    mine = scores if out.ndim == 3 else scores.mean(0)
    return wrong, fired, float(np.abs(mine - out).max() / max(1e-9, np.abs(out).max()))


def images_of(run, samples=None):
    """Test samples of a run as one tensor, [B, ...] or [T, B, ...]."""
    from steadyspike.commands.shared.deployed import batches

    return torch.cat([x for x, _ in batches(run, "test", samples)], 1 if run.data.timesteps is not None else 0)
