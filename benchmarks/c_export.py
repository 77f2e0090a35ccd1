"""The C export of a folded network against snnTorch and onnxruntime: one sample at a time, one thread.

    python -m benchmarks.c_export RUN [--data-dir DATA] [--samples 20] [--rounds 20]

RUN is a run folder. snnTorch evaluates the same folded graph with `snntorch.Leaky` as its neurons, step by step;
onnxruntime runs the exported ONNX file of all steps. The shortest of several rounds over the samples counts for each.
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
from torch import Tensor

from steadyspike.commands.shared.deployed import batches, folded
from steadyspike.deploy.network import FoldedNetwork
from steadyspike.deploy.standalone.c_file import export_c
from steadyspike.deploy.to_onnx import export_onnx
from steadyspike.train.run.loading import load_run

GOALS = {"snnTorch": 11.0, "onnxruntime": 3.0}  # their time divided by ours


def c_time(network: FoldedNetwork, folder: Path, samples: Tensor, rounds: int, integer: bool) -> float:
    """Microseconds per sample of the compiled C file."""
    export = export_c(network, folder, "int8" if integer else "real", integer=integer, main=True)
    binary = export.source.with_suffix("")
    subprocess.run(["cc", "-std=c99", "-O2", "-march=native", str(export.source), "-o", str(binary)], check=True)
    data = samples.transpose(0, 1) if network.graph.input.timed else samples
    command = [str(binary), "time", str(network.graph.timesteps), str(rounds)]
    given = data.contiguous().numpy().astype("<f4").tobytes()
    times = [subprocess.run(command, input=given, capture_output=True, check=True).stdout for _ in range(5)]
    return min(float(text) for text in times)


def snntorch_run(network: FoldedNetwork) -> Callable[[Tensor], Tensor]:
    """The folded graph with snnTorch's neurons: U = beta U + a I, reset by subtraction."""
    import snntorch

    layers = {}
    for node in network.graph.neurons():
        leak, v = float(node.tensors["leak"].mean()), float(node.tensors["threshold"].mean())
        layers[node.name] = leak, snntorch.Leaky(beta=1 - leak, threshold=v, reset_mechanism="subtract")

    def run(x: Tensor) -> Tensor:
        memory = {name: layer.init_leaky() for name, (_, layer) in layers.items()}

        def neuron(name: str, current: Tensor) -> Tensor:
            leak, layer = layers[name]
            spikes, memory[name] = layer(leak * current[0], memory[name])
            return spikes[None]

        steps = network.graph.timesteps
        return torch.stack(
            [network.run_step(x[t] if network.graph.input.timed else x, t, neuron) for t in range(steps)]
        )

    return run


def shortest(run: Callable[[Tensor], object], samples: list[Tensor], rounds: int) -> float:
    """Microseconds per sample, the shortest of the rounds."""
    best = float("inf")
    with torch.no_grad():
        for _ in range(rounds):
            start = time.perf_counter()
            for x in samples:
                run(x)
            best = min(best, (time.perf_counter() - start) / len(samples))
    return best * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
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
        ours = {kind: c_time(network, folder, data, options.rounds, kind == "int8") for kind in ("int8", "float32")}
        settings = onnxruntime.SessionOptions()
        settings.intra_op_num_threads = settings.inter_op_num_threads = 1
        path = export_onnx(network, folder / "network.onnx")
        session = onnxruntime.InferenceSession(str(path), settings, providers=["CPUExecutionProvider"])
        theirs = {
            "onnxruntime": shortest(lambda x: session.run(None, {"input": x.numpy()}), singles, 5),
            "snnTorch": shortest(snntorch_run(network), singles, 5),
        }
    print(f"{describe(1)}; T = {network.graph.timesteps}, batch 1, one thread, {len(singles)} samples")
    print("| | us per sample | / int8 | / float32 | goal |\n|---|---|---|---|---|")
    for name, value in {**{f"C, {kind}": value for kind, value in ours.items()}, **theirs}.items():
        goal = f">= {GOALS[name]:g}" if name in GOALS else ""
        print(f"| {name} | {value:.0f} | {value / ours['int8']:.1f} | {value / ours['float32']:.1f} | {goal} |")


if __name__ == "__main__":
    main()
