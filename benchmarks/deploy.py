"""The CPU runtime of a folded ResNet-19 that learned CIFAR-10 against SpikingJelly, onnxruntime and its ReLU twin.

    python -m benchmarks.deploy [NAME] [--threads 2] [--batch 8] [--rounds 5] [--write]

NAME is a ResNet-19 of the zoo or a run (learned.py); its inputs are images of the test part. Width 1 is the same
network with every channel four times. All contenders take turns in one process, and the shortest time of each counts.
``--write`` puts the table into docs/deploy.md.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from benchmarks import learned
from benchmarks.contenders import SpikingJelly
from benchmarks.machine import describe
from torch import Tensor, nn

import steadyspike as ss
from steadyspike import deploy, models
from steadyspike.deploy.graph import Graph
from steadyspike.deploy.network import FoldedNetwork, spikes_of_layers
from steadyspike.deploy.runtime import Runtime
from steadyspike.deploy.runtime.layer_call import numbers_of
from steadyspike.deploy.runtime.plan import Layer
from steadyspike.deploy.runtime.values import Bits
from steadyspike.deploy.to_onnx import export_onnx

PAGE = Path(__file__).resolve().parent.parent / "docs" / "deploy.md"
MARKS = ("<!-- runtime table begins -->", "<!-- runtime table ends -->")
CASES = ((0.25, 2), (0.25, 4), (1.0, 4))  # width, T
OURS, FOLDED, TWIN, JELLY = "runtime", "onnxruntime", "onnxruntime, ReLU twin at T = 1", "SpikingJelly PLIF"
OTHERS = (JELLY, FOLDED, TWIN)
Run = Callable[[Tensor], object]


def trained(name: str, width: float, steps: int, neuron: Callable[..., nn.Module] | None = None) -> nn.Module:
    """The learned network in evaluation mode; with another library's neurons if ``neuron`` is given."""
    own = {} if neuron is None else {"neuron": neuron}
    model = models.create("resnet19", width=width, timesteps=steps, dropout=0.0, **own)
    learned.load(model, name)
    return model.eval()


def relu_twin(folded: FoldedNetwork) -> FoldedNetwork:
    """The same architecture as an ordinary network: one step, ReLU for every neuron, plain residual sums."""
    graph, names = Graph(1), {}
    for node in folded.graph:
        inputs = tuple(names[name] for name in node.inputs)
        names[node.name] = node.name
        if node.op == "repeat":
            names[node.name] = inputs[0]
            continue
        op = "relu" if node.op == "lif" else node.op
        tensors = node.tensors if node.op in ("conv", "linear") else {}
        options = {} if node.op == "lif" else node.options
        graph.add(replace(node, op=op, inputs=inputs, timed=False, tensors=tensors, options=options))
    graph.output = names[folded.graph.output]
    return FoldedNetwork(graph).eval()


def onnx_run(path: Path, threads: int) -> Run:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return lambda x: session.run(None, {"input": x.numpy()})[0]


def spikingjelly_run(name: str, width: float, steps: int) -> Run:
    """Evaluation with torch's own convolutions, channels_last, as users run it."""
    net = ss.use_dense(trained(name, width, steps, SpikingJelly)).to(memory_format=torch.channels_last)

    def run(x: Tensor) -> object:
        with torch.no_grad():
            return net(x.contiguous(memory_format=torch.channels_last))

    return run


def shortest(runs: dict[str, Run], x: Tensor, rounds: int) -> dict[str, float]:
    """Milliseconds of each, the shortest of ``rounds``; they take turns."""
    best = dict.fromkeys(runs, float("inf"))
    for i in range(rounds + 1):
        for name, run in runs.items():
            start = time.perf_counter()
            run(x)
            took = 1000 * (time.perf_counter() - start)
            best[name] = min(best[name], took) if i else best[name]  # the first round warms up
    return best


@dataclass(frozen=True)
class Work:
    """What a call of the runtime does.

    additions: of weights, as if no spike were at a border. layers, elsewhere: seconds. rates: of each neuron layer.
    """

    additions: float
    layers: float
    elsewhere: float
    rates: dict[str, float]


def work_of(runtime: Runtime, x: Tensor) -> Work:
    """One call, watched."""
    additions, last, inside, outside = 0.0, time.perf_counter(), 0.0, 0.0
    bits: dict[str, Bits] = {}

    def watch(node, value):  # type: ignore[no-untyped-def]
        nonlocal additions, last, inside, outside
        took = time.perf_counter() - last
        layer = runtime.plan.steps[node.name]
        if isinstance(layer, Layer):
            inside += took
            for packed in runtime.constants[node.name].synapses:
                geometry = packed.geometry(runtime.plan.graph.timesteps * x.shape[0])
                count = sum(bits[name].counted for name in packed.synapse.writers)
                additions += count * geometry.work / geometry.inputs
        else:
            outside += took
        if isinstance(value, Bits):
            bits[node.name] = value
        last = time.perf_counter()

    runtime.run(x, watch=watch)
    return Work(additions, inside, outside, dict(runtime.last_rates))


def agreement(runtime: Runtime, folded: FoldedNetwork, x: Tensor) -> float:
    """The share of spikes, over all layers, in which the runtime differs from the folded network."""
    expected, _ = spikes_of_layers(folded, x)
    actual: dict[str, Tensor] = {}

    def watch(node, value):  # type: ignore[no-untyped-def]
        if node.name in expected:
            actual[node.name] = numbers_of(value) > 0

    runtime.run(x, watch=watch)
    different = sum(int((actual[name] != expected[name]).sum()) for name in expected)
    return different / sum(s.numel() for s in expected.values())


def measure(name: str, width: float, steps: int, x: Tensor, threads: int, rounds: int) -> tuple[list[str], str]:
    """Rows of the table, for all images at once and for one, and a sentence about what the runtime did."""
    folded = deploy.fold(trained(name, width, steps), x[:2], check=False)
    with tempfile.TemporaryDirectory() as folder:
        files = {FOLDED: (folded, "folded.onnx"), TWIN: (relu_twin(folded), "twin.onnx")}
        theirs = {key: onnx_run(export_onnx(net, Path(folder) / file), threads) for key, (net, file) in files.items()}
    runtime = deploy.compile(folded)
    runs: dict[str, Run] = {OURS: runtime, **theirs, JELLY: spikingjelly_run(name, width, steps)}
    apart = float(np.abs(runtime(x).numpy() - np.asarray(runs[FOLDED](x))).max())
    work = work_of(runtime, x)
    rates = list(work.rates.values())
    rows = []
    for images in (x, x[:1]):
        times = shortest(runs, images, rounds * (1 if len(images) > 1 else 2))
        ratios = " | ".join(f"{times[other] / times[OURS]:.2f}" for other in OTHERS)
        head = f"{width:g} | {steps} | {sum(rates) / len(rates):.0%} | {len(images)}"
        rows.append(f"| {head} | {times[OURS]:.2f} | {ratios} |")
    share = work.layers / (work.layers + work.elsewhere)
    return rows, (
        f"Width {width:g}, T {steps}: layers fire at {min(rates):.1%} to {max(rates):.1%}. {share:.0%} of the "
        f"runtime's time is in the layers, which add up {work.additions / 1e9:.2f} G weights, "
        f"{work.additions / work.layers / 1e9:.1f} G per second. Spikes that differ from the folded network: "
        f"{agreement(runtime, folded, x):.1e}; largest difference of the logits from onnxruntime's: {apart:.1e}."
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", nargs="?", default=learned.NAME)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--write", action="store_true", help="put the table into docs/deploy.md")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    x = learned.batch(args.name, args.batch)[0].contiguous()
    lines = [f"| width | T | firing | images | {OURS}, ms | {' | '.join(f'{other} / ours' for other in OTHERS)} |"]
    lines.append("|---" * 8 + "|")
    notes = []
    for width, steps in CASES:
        rows, note = measure(args.name, width, steps, x, args.threads, args.rounds)
        lines += rows
        notes.append(note)
        print("\n".join([*rows, note]), flush=True)
    about = describe(args.threads)
    notes.append(
        f"`{args.name}`, {args.batch} test images, float32. {about['cpu']}, {args.threads} threads; torch "
        f"{about['versions']['torch']}, SpikingJelly {about['versions']['spikingjelly']}, commit {about['commit']}, "
        f"load {about['load']} at the end."
    )
    if args.write:
        before, rest = PAGE.read_text().split(MARKS[0])
        written = "\n".join([MARKS[0], "", *lines, "", "\n\n".join(notes), "", MARKS[1]])
        PAGE.write_text(before + written + rest.split(MARKS[1])[1])


if __name__ == "__main__":
    main()
