"""A ResNet-19 of the zoo that learned CIFAR-10, and images that it did not learn from.

    python -m benchmarks.learned [NAME, folder or checkpoint] [--timesteps 4 2]

Prints how often each layer fires: what its events cost depends on that. The data is found as for `steadyspike train`,
or in the folder STEADYSPIKE_DATA.
"""

from __future__ import annotations

import argparse
import os
from functools import cache
from pathlib import Path

import torch
from torch import Tensor, nn

import steadyspike as ss
from steadyspike.core.reference_scan import ScanResult
from steadyspike.kernels.spikes.note import spikes_per_step
from steadyspike.nn.neuron import Neuron, Tap, neurons
from steadyspike.train.run.loading import LoadedRun, load_checkpoint
from steadyspike.zoo.pretrained import Pretrained

NAME = "cifar10-resnet19"
FOLDER = Path(__file__).parent / "results"


@cache
def network(name: str) -> Pretrained | LoadedRun:
    """The network by its name in the zoo, the folder of a run, or a checkpoint of one that need not have ended."""
    data = os.environ.get("STEADYSPIKE_DATA")
    return load_checkpoint(name) if name.endswith(".ckpt") else ss.load(name, data_dir=data)


def batch(name: str, size: int) -> tuple[Tensor, Tensor]:
    """The first ``size`` images of the test part, [size, 3, 32, 32] in channels_last, and their classes."""
    x, y = next(iter(network(name).data.eval_loader("test", size)))[:2]
    return x.contiguous(memory_format=torch.channels_last), y


def load(net: nn.Module, name: str) -> None:
    """The learned weights into a network that may have other neurons: what it does not have is left out.

    A wider network gets every channel several times and computes the same: every copy fires like the learned channel.
    """
    sizes = {key: tensor.shape for key, tensor in net.state_dict().items()}
    state = {
        key: _widened(tensor, sizes[key]) for key, tensor in network(name).model.state_dict().items() if key in sizes
    }
    missing = net.load_state_dict(state, strict=False).missing_keys
    wrong = [key for key in missing if "conv" in key or "norm" in key or "head" in key]
    assert not wrong, f"not the same network: {wrong}"


def _widened(learned: Tensor, shape: torch.Size) -> Tensor:
    """``learned`` repeated to ``shape``; a weight is divided by the number of copies of its input."""
    copies = [wide // narrow for wide, narrow in zip(shape, learned.shape)]
    if learned.shape == shape:
        return learned
    return learned.repeat(copies) / (copies[1] if learned.ndim > 1 else 1)


@torch.no_grad()
def rates(name: str, width: float, steps: int) -> dict[str, float]:
    """The share of every layer's neurons that fire per step, in an evaluation of 64 images."""
    net = ss.models.create("resnet19", width=width, timesteps=steps, dropout=0.0).to(memory_format=torch.channels_last)
    load(net, name)
    counted: dict[str, float] = {}

    def counting(key: str) -> Tap:
        def see(layer: Neuron, x: Tensor, u0: Tensor, result: ScanResult) -> None:
            counted[key] = float(spikes_per_step(result.out).sum()) / result.out.numel()

        return Tap(see, current=False)

    for key, layer in neurons(net).items():
        layer.taps["rates"] = counting(key)
    net.eval()(batch(name, 64)[0])
    return counted


def rate_table(name: str, width: float, steps: int, rates: dict[str, float]) -> str:
    """`rates` as a table."""
    mean = sum(rates.values()) / len(rates)
    head = f"**Firing rates of {Path(name).name}, width {width:g}, T = {steps}**: mean {mean:.1%}\n"
    return "\n".join([head, "| layer | rate |", "|---|---|", *(f"| {key} | {r:.1%} |" for key, r in rates.items())])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", nargs="?", default=NAME)
    parser.add_argument("--timesteps", type=int, nargs="+", default=[4, 2])
    args = parser.parse_args()
    for steps in args.timesteps:
        width = network(args.name).recipe.model.width
        print(rate_table(args.name, width, steps, rates(args.name, width, steps)))


if __name__ == "__main__":
    main()
