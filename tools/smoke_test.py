"""Checks an installed steadyspike: run it with the Python it is installed for, in a folder outside the source tree.

    cd /tmp && python .../tools/smoke_test.py

The kernels must load, a layer must give the reference's spikes and gradients, and a network must learn.
"""

from __future__ import annotations

import platform
import sys
from pathlib import Path

import torch

import steadyspike as ss
from steadyspike.kernels.library import LIBRARY
from steadyspike.kernels.scan.choose import choose_backend


def compare(name: str, first: torch.Tensor, second: torch.Tensor) -> None:
    difference = float((first - second).abs().max())
    print(f"{name}: largest difference {difference:.1e}")
    if not difference <= 1e-5 * max(1.0, float(second.abs().max())):
        sys.exit(f"{name} differs from the reference")


def main() -> None:
    source = Path(__file__).resolve().parent.parent
    if source in Path(ss.__file__).resolve().parents:
        sys.exit(f"this is the source tree ({ss.__file__}), not an installed package")
    print(f"{ss.__file__}, torch {torch.__version__}, {platform.platform()}")
    if choose_backend("auto", torch.empty(0)) != "cpu":
        sys.exit(f"the kernels do not run: {LIBRARY}")

    torch.manual_seed(0)
    x = torch.randn(4, 8, 32, 9, 9)
    results = {}
    for backend in ("cpu", "reference"):
        layer, given = ss.LIF(backend=backend), x.clone().requires_grad_()
        out = layer(given)
        out.square().sum().backward()
        assert given.grad is not None
        results[backend] = out.detach(), given.grad
    compare("spikes", results["cpu"][0], results["reference"][0])
    compare("gradients", results["cpu"][1], results["reference"][1])

    model = ss.models.create("resnet19_tiny", timesteps=4)
    images, labels = torch.rand(16, 3, 16, 16), torch.arange(16) % 10
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    losses = []
    for _ in range(15):
        loss = torch.nn.functional.cross_entropy(model(images).mean(0), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    print(f"training: loss {losses[0]:.2f} to {losses[-1]:.2f}")
    if not losses[-1] < losses[0]:
        sys.exit("the network does not learn")
    print("everything runs")


if __name__ == "__main__":
    main()
