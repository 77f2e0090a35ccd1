"""The C export of a folded network against snnTorch and onnxruntime: one sample at a time, one thread.

    python -m benchmarks.c_export RUN [--data-dir DATA] [--samples 20] [--rounds 20]

RUN is a run folder, or a network of the zoo by its name. snnTorch runs a plain model of torch's layers and
`snntorch.Leaky` with the folded weights, step by step; onnxruntime runs the exported ONNX file of all steps. CPU time
is compared: the least of several rounds over the samples counts for each.
"""

from __future__ import annotations

import argparse
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from benchmarks.machine import describe
from torch import Tensor, nn

from steadyspike.commands.common import run_or_name
from steadyspike.commands.shared.deployed import batches, folded
from steadyspike.deploy.graph import Graph, Node
from steadyspike.deploy.network import FoldedNetwork
from steadyspike.deploy.standalone.c_file import export_c
from steadyspike.deploy.to_onnx import export_onnx
from steadyspike.train.run.loading import load_run

GOALS = {"snnTorch": 11.0, "onnxruntime": 3.0}  # their time divided by ours


def c_time(network: FoldedNetwork, folder: Path, samples: Tensor, rounds: int, integer: bool) -> tuple[float, int]:
    """Microseconds per sample of the compiled C file, and its RAM in bytes."""
    export = export_c(network, folder, "int8" if integer else "real", integer=integer, main=True)
    binary = export.source.with_suffix("")
    subprocess.run(["cc", "-std=c99", "-O2", "-march=native", str(export.source), "-o", str(binary)], check=True)
    data = samples.transpose(0, 1) if network.graph.input.timed else samples
    command = [str(binary), "time", str(network.graph.timesteps), str(rounds)]
    given = data.contiguous().numpy().astype("<f4").tobytes()
    times = [subprocess.run(command, input=given, capture_output=True, check=True).stdout for _ in range(5)]
    return min(float(text) for text in times), export.ram


class Added(nn.Module):
    """A sum of layers and of identity shortcuts, which have a weight each."""

    def __init__(self, weights: list[Tensor | float | None]) -> None:
        super().__init__()
        self.weights = weights

    def forward(self, *terms: Tensor) -> Tensor:
        scaled = [x if weight is None else weight * x for x, weight in zip(terms, self.weights)]
        return torch.stack(scaled).sum(0) if len(scaled) > 2 else scaled[0] + scaled[-1]


class SnnTorchModel(nn.Module):
    """The network as a user of snnTorch writes it: layers, sums at shortcuts, and neurons that hold their state.

    `Leaky` adds the plain current, so that the leak goes into the weights; it resets one step later than the folded
    network, so that some spikes differ.
    """

    def __init__(self, graph: Graph) -> None:
        super().__init__()
        self.layers = nn.ModuleList()
        self.reads: list[list[int]] = []  # positions of the inputs of each layer; 0: the frame
        at = {"input": 0}
        for name in graph.nodes:
            node = graph[name]
            if node.op == "repeat":  # snnTorch's loop over time shows the image again
                at[name] = at[node.inputs[0]]
            elif node.op != "input":
                self.layers.append(snntorch_layer(node))
                self.reads.append([at[i] for i in node.inputs])
                at[name] = len(self.layers)
                if node.op == "lif":
                    self._scale_current(self.reads[-1][0], float(node.tensors["leak"].mean()))

    def _scale_current(self, at: int, leak: float) -> None:
        layer = self.layers[at - 1]
        for tensor in layer.parameters():
            tensor.data.mul_(leak)
        if isinstance(layer, Added):
            for i, (source, weight) in enumerate(zip(self.reads[at - 1], layer.weights)):
                if weight is None and isinstance(self.layers[source - 1], nn.Conv2d):
                    self._scale_current(source, leak)
                else:
                    layer.weights[i] = leak if weight is None else weight * leak

    def forward(self, frame: Tensor) -> Tensor:
        values = [frame]
        for layer, reads in zip(self.layers, self.reads):
            values.append(layer(*(values[i] for i in reads)))
        return values[-1]


def snntorch_layer(node: Node) -> nn.Module:
    """The layer of torch or snnTorch that computes a node for one frame."""
    import snntorch

    options = node.options
    if node.op == "lif":
        leak, v = float(node.tensors["leak"].mean()), float(node.tensors["threshold"].mean())
        return snntorch.Leaky(beta=1 - leak, threshold=v, reset_mechanism="subtract", init_hidden=True)
    if node.op == "conv":
        outputs, inputs, *kernel = node.tensors["weight"].shape
        sizes = {key: tuple(options[key]) for key in ("stride", "padding", "dilation")}
        layer: nn.Module = nn.Conv2d(inputs * options["groups"], outputs, kernel, groups=options["groups"], **sizes)
    elif node.op == "linear":
        layer = nn.Linear(*reversed(node.tensors["weight"].shape))
    elif node.op in ("avg_pool", "max_pool"):
        pool = nn.AvgPool2d if node.op == "avg_pool" else nn.MaxPool2d
        return pool(options["kernel_size"], options["stride"], options["padding"])
    elif node.op == "mean" and len(options["axes"]) == 2:
        return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
    elif node.op == "reshape":
        return nn.Flatten()
    elif node.op == "sum":
        return Added([node.tensors.get(f"edge{i}") for i in range(len(node.inputs))])
    else:
        raise SystemExit(f"{node.name}: {node.op} has no layer in this comparison")
    layer.load_state_dict(node.tensors)
    return layer


def snntorch_run(network: FoldedNetwork) -> Callable[[Tensor], Tensor]:
    """One sample through `SnnTorchModel`, all steps, scores averaged."""
    from snntorch import utils

    model, steps, timed = SnnTorchModel(network.graph).eval(), network.graph.timesteps, network.graph.input.timed

    def run(x: Tensor) -> Tensor:
        utils.reset(model.layers)
        return torch.stack([model(x[t] if timed else x) for t in range(steps)]).mean(0)

    return run


def shortest(run: Callable[[Tensor], object], samples: list[Tensor], rounds: int) -> float:
    """Microseconds of CPU time per sample, the least of the rounds."""
    best = float("inf")
    with torch.no_grad():
        for _ in range(rounds):
            start = time.process_time()
            for x in samples:
                run(x)
            best = min(best, (time.process_time() - start) / len(samples))
    return best * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=run_or_name)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--samples", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=20)
    options = parser.parse_args()
    torch.set_num_threads(1)
    import onnxruntime

    network, _ = folded(options.run, options.data_dir)
    data = next(iter(batches(load_run(options.run, options.data_dir), "test", options.samples)))[0]
    axis = 1 if network.graph.input.timed else 0
    singles = list(data.split(1, axis))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        both = {kind: c_time(network, folder, data, options.rounds, kind == "int8") for kind in ("int8", "float32")}
        settings = onnxruntime.SessionOptions()
        settings.intra_op_num_threads = settings.inter_op_num_threads = 1
        path = export_onnx(network, folder / "network.onnx")
        session = onnxruntime.InferenceSession(str(path), settings, providers=["CPUExecutionProvider"])
        theirs = {
            "onnxruntime": shortest(lambda x: session.run(None, {"input": x.numpy()}), singles, options.rounds),
            "snnTorch": shortest(snntorch_run(network), singles, options.rounds),
        }
    ours = {kind: microseconds for kind, (microseconds, _) in both.items()}
    print(f"{describe(1)}; T = {network.graph.timesteps}, batch 1, one thread, {len(singles)} samples")
    print("| | us per sample | / int8 | / float32 | goal | RAM |\n|---|---|---|---|---|---|")
    rams = {f"C, {kind}": f"{ram / 1024:.1f} KB" for kind, (_, ram) in both.items()}
    for name, value in {**{f"C, {kind}": value for kind, value in ours.items()}, **theirs}.items():
        goal = f">= {GOALS[name]:g}" if name in GOALS else ""
        ratios = f"{value / ours['int8']:.1f} | {value / ours['float32']:.1f}"
        print(f"| {name} | {value:.0f} | {ratios} | {goal} | {rams.get(name, '')} |")


if __name__ == "__main__":
    main()
