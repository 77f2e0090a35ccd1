"""A network of the zoo from its weights to what runs elsewhere, measured on real test images; for docs/deploy.md.

    python -m benchmarks.end_to_end [NAME] [--samples 10000] [--data-dir DATA]

It calls what `steadyspike evaluate`, `fold --float64`, `export`, `energy` and `predict --confidence` call, records the
numbers (steadyspike/results/deployed.json) and renders the page.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import torch
from benchmarks import machine, result_tables, results_page
from torch import Tensor

from steadyspike import deploy
from steadyspike.commands.shared.deployed import batches, decisions, decisions_in_float64
from steadyspike.deploy.early_exit import exit_curve
from steadyspike.results.measured import Measured, results_root
from steadyspike.results.recording import add
from steadyspike.train.files.folder import run_folder
from steadyspike.train.run.loading import load_run
from steadyspike.zoo.listing import entries

NAME = "cifar10-resnet19"
FILE = "deployed.json"
ENERGY_SAMPLES = 1000
CONFIDENCES = (0.5, 0.9)


def percent(chosen: Tensor, labels: Tensor) -> float:
    return round(100 * float((chosen == labels).double().mean()), 2)


def measured(name: str, samples: int, data_dir: Path | None) -> dict[str, float | list[float]]:
    """Returns the numbers of a network: accuracies in %, counts per image, sizes in MB."""
    run = load_run(run_folder(name), data_dir)
    numbers: dict[str, Any] = {"samples": samples}

    def data() -> Iterator[tuple[Tensor, Tensor]]:
        return batches(run, "test", samples)

    example = next(data())[0]
    network = deploy.fold(run.model, example)
    numbers["neuron layers"] = len(network.graph.neurons())
    for proof in network.proofs:  # a layer's worst share of spikes, in %
        numbers[f"spikes that differ in {str(proof.dtype).removeprefix('torch.')}"] = 100 * proof.worst
    expected, labels = decisions(run.model, data())
    folded, _ = decisions(network, data())
    numbers |= {
        "model": percent(expected, labels), "folded": percent(folded, labels),
        "decided differently": int((expected != folded).sum()),
    }  # fmt: skip
    expected64, folded64, _ = decisions_in_float64(run, "exact", samples)
    numbers |= {
        "model in float64": percent(expected64, labels),
        "decided differently in float64": int((expected64 != folded64).sum()),
    }
    integer = deploy.IntegerNetwork(network)
    numbers["int8"] = percent(decisions(integer, data())[0], labels)
    report = deploy.count_operations(network, (x for x, _ in batches(run, "test", min(samples, ENERGY_SAMPLES))))
    numbers |= {
        "samples for energy": report.samples, "million ACs": report.total("acs") / 1e6,
        "million MACs": report.total("macs") / 1e6, "microjoules": 1e3 * report.energy(),
        "firing rate": next((e.numbers.firing_rate for e in entries() if e.name == name), math.nan),
    }  # fmt: skip
    with torch.no_grad():
        rules = [deploy.Confidence(c) for c in CONFIDENCES]
        points = exit_curve(((network(x), y) for x, y in data()), rules)
    numbers["early exit: confidence"] = list(CONFIDENCES)
    numbers["early exit: accuracy"] = [round(100 * point.accuracy, 2) for point in points]
    numbers["early exit: steps"] = [round(point.steps, 3) for point in points]
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        deploy.save(network, root / "folded.safetensors")
        integer.save(root / "int8.safetensors")
        deploy.export_onnx(network, root / "network.onnx")
        deploy.export_nir(network, root / "network.nir")
        numbers |= {f"MB of {file.name}": round(file.stat().st_size / 1e6, 2) for file in sorted(root.iterdir())}
    return numbers


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", nargs="?", default=NAME)
    parser.add_argument("--samples", type=int, default=10_000)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--show", action="store_true", help="print the numbers; record nothing")
    args = parser.parse_args()
    numbers = measured(args.name, args.samples, args.data_dir)
    for key, value in numbers.items():
        print(f"{key}: {value}")
    if args.show:
        return 0
    now = machine.describe(torch.get_num_threads())
    entry = Measured(
        recipe=f"end-to-end:{args.name}", value=numbers["model"],
        seed=load_run(run_folder(args.name)).recipe.train.seed,
        commit=now["commit"], hardware=f"{result_tables.kind(now)}, {now['threads']} of {now['cores']} cores",
        software=f"torch {torch.__version__}", date=date.today().isoformat(), numbers=numbers,
    )  # fmt: skip
    add(results_root() / FILE, entry)
    print("\n".join(f"{page} written" for page in results_page.write()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
