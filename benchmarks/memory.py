"""Prints the table of docs/memory.md: what a training step keeps and needs, plain and after `save_memory`.

    python benchmarks/memory.py

By `memory_estimate`, so it takes seconds and almost no memory, and gives the same numbers on every machine.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

import steadyspike as ss
from steadyspike.nn.norm import TDBN

BATCH, STEPS, CLASSES = 64, 4, 100


class ByHand(nn.Module):
    """Nine layers of convolution, norm and neuron, connected as torch's own layers are."""

    def __init__(self, width: int = 64, layers: int = 9) -> None:
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(width if i else 3, width, 3, padding=1, bias=False) for i in range(layers))
        self.norms = nn.ModuleList(TDBN(width) for _ in range(layers))
        self.neurons = nn.ModuleList(ss.LIF() for _ in range(layers))
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = x.expand(STEPS, *x.shape)
        for conv, norm, neuron in zip(self.convs, self.norms, self.neurons):
            x = neuron(norm(conv(x.flatten(0, 1)).unflatten(0, x.shape[:2])))
        return self.head(x.mean((-2, -1)))


def library(name: str, dense: bool = False) -> nn.Module:
    model = ss.models.create(name, num_classes=CLASSES, timesteps=STEPS, image_size=32)
    return ss.use_dense(model) if dense else model


def cell(model: nn.Module) -> str:
    """Saved / peak in MiB."""
    estimate = ss.memory_estimate(model, torch.empty(BATCH, 3, 32, 32, device="meta"))
    return f"{estimate.saved / 2**20:.0f} / {estimate.peak / 2**20:.0f}"


def main() -> None:
    print("| network | plain | `save_memory` |\n|---|---|---|")
    for title, model in (
        ("nine layers of `nn.Conv2d` (64 channels), `TDBN` and `LIF`, connected by hand", ByHand()),
        ("ResNet-19", library("resnet19")),
        ("ResNet-19 after `use_dense`", library("resnet19", dense=True)),
        ("Spikformer (`spikformer_cifar`)", library("spikformer_cifar")),
        ("QKFormer (`qkformer_cifar`)", library("qkformer_cifar")),
        ("MS-ResNet-18 after `use_dense`", library("ms_resnet18", dense=True)),
    ):
        plain = cell(model)
        print(f"| {title} | {plain} | {cell(ss.save_memory(model))} |", flush=True)  # it changes the model itself


if __name__ == "__main__":
    main()
