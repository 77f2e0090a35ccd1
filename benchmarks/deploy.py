"""The CPU runtime of a folded ResNet-19 against SpikingJelly, onnxruntime and its ReLU twin, in one process.

    python benchmarks/deploy.py [--threads 2] [--batch 8] [--rounds 5] [--width 1] [--write]

All take turns and the shortest time of each counts. Files that take long to make (the folded network, the ONNX files)
are kept in ``--cache``. ``--write`` puts the table into docs/deploy.md.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from benchmarks.contenders import SpikingJelly
from benchmarks.machine import describe
from torch import Tensor

import steadyspike as ss
from steadyspike import deploy, models
from steadyspike.deploy.graph import Graph
from steadyspike.deploy.network import FoldedNetwork, spikes_of_layers
from steadyspike.deploy.runtime import Runtime
from steadyspike.deploy.runtime.layer_call import numbers_of
from steadyspike.deploy.runtime.plan import Layer
from steadyspike.deploy.runtime.values import Bits
from steadyspike.deploy.to_onnx import export_onnx

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "deploy.md"
MARKS = ("<!-- runtime table begins -->", "<!-- runtime table ends -->")
STEPS = 4
OURS, FOLDED, TWIN, JELLY = (
    "runtime",
    "onnxruntime, folded network",
    "onnxruntime, ReLU twin (T 1)",
    "SpikingJelly PLIF",
)
GOALS = {JELLY: 7.0, FOLDED: 3.0, TWIN: 1.0}  # their time divided by ours, at the batch size
Run = Callable[[Tensor], object]


def network(width: float) -> FoldedNetwork:
    """ResNet-19 whose norms have statistics that fit their input: layers fire as in a trained network."""
    torch.manual_seed(0)
    model = models.create("resnet19", width=width, timesteps=STEPS)
    for module in model.modules():
        if hasattr(module, "running_var"):
            module.momentum = 1.0
    images = torch.rand(2, 3, 32, 32)
    with torch.no_grad():
        for _ in range(4):
            model(images)
    return deploy.fold(model.eval(), images, check=False)


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


def cached(cache: Path, width: float) -> tuple[FoldedNetwork, Path, Path]:
    """The folded network and the ONNX files of it and of its twin."""
    cache.mkdir(parents=True, exist_ok=True)
    kept, files = cache / f"resnet19-{width:g}.safetensors", []
    if not kept.exists():
        deploy.save(network(width), kept)
    folded = deploy.load(kept)
    for name, make in (("folded", lambda: folded), ("twin", lambda: relu_twin(folded))):
        files.append(cache / f"resnet19-{width:g}-{name}.onnx")
        if not files[-1].exists():
            export_onnx(make(), files[-1])
    return folded, files[0], files[1]


def onnx_run(path: Path, threads: int) -> Run:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return lambda x: session.run(None, {"input": x.numpy()})[0]


def spikingjelly_run(width: float) -> Run:
    """Evaluation with torch's own convolutions, channels_last, as users run it."""
    torch.manual_seed(0)
    net = models.create("resnet19", neuron=SpikingJelly, width=width, timesteps=STEPS)
    ss.use_dense(net).to(memory_format=torch.channels_last).eval()

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
                geometry = packed.geometry(STEPS * x.shape[0])
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


def table(batch: int, many: dict[str, float], one: dict[str, float]) -> list[str]:
    lines = [
        f"| | {batch} images, ms | one image, ms | their time / ours, {batch} images | one image | goal | |",
        "|---|---|---|---|---|---|---|",
        f"| {OURS} | {many[OURS]:.1f} | {one[OURS]:.1f} | | | | |",
    ]
    for name, goal in GOALS.items():
        ratio = many[name] / many[OURS]
        word = "reached" if ratio >= goal else "missed"
        lines.append(
            f"| {name} | {many[name]:.1f} | {one[name]:.1f} | {ratio:.2f} | {one[name] / one[OURS]:.2f} | "
            f">= {goal:g} | {word} |"
        )
    return lines


def bound(work: Work, batch: int) -> str:
    rate = work.additions / work.layers / 1e9
    share = work.layers / (work.layers + work.elsewhere)
    return (
        f"What bounds the runtime at {batch} images: {share:.0%} of its time is in the layers, which add up "
        f"{work.additions / 1e9:.2f} G weights, {rate:.1f} G per second (borders counted as if they had all taps). "
        "Each addition loads a weight from the cache: loads limit it, not arithmetic."
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--width", type=float, default=1.0)
    parser.add_argument("--cache", type=Path, default=ROOT / "benchmarks" / "results" / "deploy")
    parser.add_argument("--write", action="store_true", help="put the table into docs/deploy.md")
    parser.add_argument("--prepare", action="store_true", help="only make the files of --cache")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    folded, folded_onnx, twin_onnx = cached(args.cache, args.width)
    if args.prepare:
        return
    runtime = deploy.compile(folded)
    runs: dict[str, Run] = {
        OURS: runtime,
        FOLDED: onnx_run(folded_onnx, args.threads),
        TWIN: onnx_run(twin_onnx, args.threads),
        JELLY: spikingjelly_run(args.width),
    }
    generator = torch.Generator().manual_seed(1)
    x = torch.rand(args.batch, 3, 32, 32, generator=generator)
    logits, other = runtime(x).numpy(), np.asarray(runs[FOLDED](x))
    many, one = shortest(runs, x, args.rounds), shortest(runs, x[:1], 2 * args.rounds)
    work = work_of(runtime, x)
    about = describe(args.threads)
    rates = list(work.rates.values())
    lines = [
        f"ResNet-19, width {args.width:g}, 32 x 32 images, T {STEPS}, float32. {about['cpu']}, {args.threads} threads; "
        f"torch {about['versions']['torch']}, SpikingJelly {about['versions']['spikingjelly']}, commit "
        f"{about['commit']}, load {about['load']} at the end. Firing rates {min(rates):.1%} to {max(rates):.1%}, "
        f"{sum(rates) / len(rates):.1%} on average.",
        "",
        *table(args.batch, many, one),
        "",
        bound(work, args.batch),
        f"Spikes that differ from the folded network: {agreement(runtime, folded, x):.1e}; largest difference of "
        f"the logits from onnxruntime's: {np.abs(logits - other).max():.1e}.",
    ]
    print("\n".join(lines))
    print("\n".join(f"{name:24} {rate:6.2%} fire" for name, rate in work.rates.items()))
    if args.write:
        before, rest = PAGE.read_text().split(MARKS[0])
        PAGE.write_text(before + "\n".join([MARKS[0], "", *lines, "", MARKS[1]]) + rest.split(MARKS[1])[1])


if __name__ == "__main__":
    main()
