"""`ss.stabilize` on real data: a SpikingJelly network in SpikingJelly's own loop on CIFAR-10, with and without.

    python -m benchmarks.proof_stabilize --data-dir DATA [--out runs/proof-stabilize] [--jobs 1] [--all]

Three seeds of the unchanged network and after `ss.stabilize`; with --all also after `ss.convert` (same dynamics). Each
run is a process with one thread. Runs that are there already are kept, so the program can be stopped and started again;
the numbers are recorded, and docs/results.md is rendered from them. Time is the processor's time, which other programs
on the machine hardly change.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import torch
from benchmarks import results_page
from benchmarks.machine import describe
from torch import Tensor, nn

import steadyspike as ss
from steadyspike.results.measured import Measured, results_root
from steadyspike.results.recording import add
from steadyspike.train.files.folder import RunError

VARIANTS = ("original", "convert", "stabilize")
SEEDS = (0, 1, 2)
STEPS, BATCH, EPOCHS, TRAIN, TEST = 4, 32, 4, 2000, 1000


def images(folder: Path, files: list[str], count: int) -> tuple[Tensor, Tensor]:
    """The first ``count`` images of CIFAR-10's binary files, normalised [N, 3, 32, 32], and their labels."""
    rows = np.concatenate([np.fromfile(folder / name, np.uint8).reshape(-1, 3073) for name in files])[:count]
    x = torch.from_numpy(rows[:, 1:].reshape(-1, 3, 32, 32).astype(np.float32) / 255)
    return (x - 0.45) / 0.25, torch.from_numpy(rows[:, 0].astype(np.int64))


def network() -> nn.Sequential:
    """A user's network: LIFNode with its defaults (tau 2, V 1, hard reset), detached reset as in the tutorials."""
    from spikingjelly.activation_based import functional, layer, neuron, surrogate

    def spiking() -> nn.Module:
        return neuron.LIFNode(detach_reset=True, surrogate_function=surrogate.ATan())

    def block(i: int, o: int) -> list[nn.Module]:
        return [layer.Conv2d(i, o, 3, padding=1, bias=False), layer.BatchNorm2d(o), spiking(), layer.AvgPool2d(2)]

    net = nn.Sequential(*block(3, 12), *block(12, 24), *block(24, 48), layer.Flatten(), layer.Linear(48 * 16, 10))
    functional.set_step_mode(net, "m")
    return net


def run(variant: str, seed: int, folder: Path) -> dict[str, Any]:
    """Trains one network in SpikingJelly's loop and measures it."""
    from spikingjelly.activation_based import functional

    torch.set_num_threads(1)
    torch.manual_seed(seed)
    x, y = images(folder, ["data_batch_1.bin"], TRAIN)
    x_test, y_test = images(folder, ["test_batch.bin"], TEST)
    net = network()
    if variant != "original":
        {"convert": ss.convert, "stabilize": ss.stabilize}[variant](net, report=None)
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS * -(-TRAIN // BATCH))
    order = torch.Generator().manual_seed(seed)
    seconds, losses = [], []
    for _ in range(EPOCHS):
        net.train()
        for batch in torch.randperm(TRAIN, generator=order).split(BATCH):
            start = time.process_time()
            optimizer.zero_grad()
            out = net(x[batch].repeat(STEPS, 1, 1, 1, 1)).mean(0)
            loss = nn.functional.cross_entropy(out, y[batch])
            loss.backward()
            optimizer.step()
            schedule.step()
            functional.reset_net(net)
            seconds.append(time.process_time() - start)
            losses.append(float(loss.detach()))
    return {
        "accuracy": accuracy_after_each_step(net, x_test, y_test),
        "loss": [statistics.mean(losses[:20]), statistics.mean(losses[-20:])],
        "seconds": statistics.median(seconds),
        "commit": describe(threads=1)["commit"],
        "date": date.today().isoformat(),
        "megabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


@torch.no_grad()
def accuracy_after_each_step(net: nn.Module, x: Tensor, y: Tensor) -> list[float]:
    """Test accuracy of the mean output after 1, 2, ... T steps, in percent."""
    from spikingjelly.activation_based import functional

    net.eval()
    right = torch.zeros(STEPS)
    for images, labels in zip(x.split(100), y.split(100)):
        out = net(images.repeat(STEPS, 1, 1, 1, 1)).cumsum(0)
        functional.reset_net(net)
        right += (out.argmax(-1) == labels).float().sum(1)
    return (100 * right / len(y)).tolist()


def started(variant: str, seed: int, options: argparse.Namespace) -> dict[str, Any]:
    """The result of a run, from its file or from a separate process."""
    path = options.out / f"{variant}-{seed}.json"
    if not path.exists():
        command = [sys.executable, "-m", "benchmarks.proof_stabilize", "--data-dir", str(options.data_dir)]
        done = subprocess.run([*command, "--one", variant, str(seed)], capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError(f"{variant}, seed {seed}: {done.stderr[-2000:]}")
        options.out.mkdir(parents=True, exist_ok=True)
        path.write_text(done.stdout.splitlines()[-1] + "\n")
        print(f"{variant}, seed {seed}: {path.read_text().strip()}", flush=True)
    return json.loads(path.read_text())


def entry(variant: str, seed: int, result: dict[str, Any]) -> Measured:
    """The result of a run in the form in which results are kept."""
    *first, last = result["accuracy"]
    numbers = {f"after step {step}": round(value, 2) for step, value in enumerate(first, 1)}
    numbers["training loss"] = round(result["loss"][1], 4)
    numbers["milliseconds per step"] = round(1000 * result["seconds"], 2)
    numbers["megabytes"] = round(result["megabytes"], 1)
    machine = describe(threads=1)
    return Measured(
        recipe=f"stabilize:{variant}", seed=seed, value=round(last, 2), commit=result["commit"],
        hardware=f"{machine['cpu']}, one thread", software=f"torch {machine['versions']['torch']}",
        date=result["date"], numbers=numbers,
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path("runs/proof-stabilize"))
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--all", action="store_true", help="also the converted network")
    parser.add_argument("--one", nargs=2, metavar=("VARIANT", "SEED"), help="run one and print its result as JSON")
    options = parser.parse_args()
    data = options.data_dir / "cifar-10-batches-bin"
    if options.one is not None:
        print(json.dumps(run(options.one[0], int(options.one[1]), data)))
        return
    variants = [v for v in VARIANTS if options.all or v != "convert"]
    plan = [(v, s) for s in SEEDS for v in variants]
    with ThreadPoolExecutor(options.jobs) as pool:
        actual = dict(zip(plan, pool.map(lambda run: started(*run, options), plan)))
    for (variant, seed), result in actual.items():
        with suppress(RunError):  # recorded before
            add(results_root() / "stabilize.json", entry(variant, seed, result))
    results_page.write()


if __name__ == "__main__":
    main()
