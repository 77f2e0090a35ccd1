"""A ResNet-19 trained for a little while, so that its layers fire as in a trained network, and its images.

    python -m benchmarks.natural 0.25 [more widths]

Ten classes of smooth random patterns with noise, SGD with momentum. Training ends when the mean firing rate has
settled: the last ten steps differ from the ten before by less than 3 %. The weights are kept in benchmarks/results/.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from steadyspike import models
from steadyspike.core.reference_scan import ScanResult
from steadyspike.nn.neuron import Neuron, Tap, neurons

FOLDER = Path(__file__).parent / "results"
BATCH, LEAST, MOST, SETTLED = 8, 40, 120, 0.03


def batch(size: int, seed: int) -> tuple[Tensor, Tensor]:
    """Images [size, 3, 32, 32] and their classes."""
    patterns = torch.randn(10, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(0, 10, (size,), generator=generator)
    smooth = F.interpolate(patterns, scale_factor=4, mode="bilinear")
    return smooth[y] + 0.7 * torch.randn(size, 3, 32, 32, generator=generator), y


class _Rates:
    """The firing rate of every neuron layer in the last forward."""

    def __init__(self, net: nn.Module) -> None:
        self.last: dict[str, float] = {}
        for name, layer in neurons(net).items():
            layer.taps["rates"] = Tap(self._see(name), current=False)

    def _see(self, name: str) -> Any:
        def see(layer: Neuron, x: Tensor, u0: Tensor, result: ScanResult) -> None:
            self.last[name] = float(result.out.count_nonzero()) / result.out.numel()

        return see

    @property
    def mean(self) -> float:
        return sum(self.last.values()) / len(self.last)


def _network(width: float) -> nn.Module:
    torch.manual_seed(0)
    return models.create("resnet19", width=width, timesteps=4).to(memory_format=torch.channels_last)


def train(width: float) -> dict[str, Any]:
    """The state of the trained network, its rates in evaluation by layer, and how many steps it took."""
    net = _network(width)
    rates, history = _Rates(net), []
    optimizer = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9, weight_decay=5e-4)
    for step in range(MOST):
        x, y = batch(BATCH, seed=100 + step)
        loss = F.cross_entropy(net(x.contiguous(memory_format=torch.channels_last)).mean(0), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        history.append(rates.mean)
        print(f"step {step + 1}: loss {float(loss):.3f}, mean rate {rates.mean:.2%}", file=sys.stderr, flush=True)
        before, now = (sum(history[-i - 10 : -i or None]) / 10 for i in (10, 0))
        if step + 1 >= LEAST and abs(now - before) < SETTLED * before:
            break
    net.eval()
    with torch.no_grad():
        net(batch(64, seed=1)[0].contiguous(memory_format=torch.channels_last))
    return {"state": net.state_dict(), "rates": rates.last, "steps": len(history), "loss": float(loss)}


def trained(width: float) -> dict[str, Any]:
    """`train`, from the file if there is one."""
    path = FOLDER / f"natural-{width:g}.pt"
    if not path.exists():
        FOLDER.mkdir(exist_ok=True)
        partial = path.with_suffix(".new")
        torch.save(train(width), partial)
        partial.replace(path)
    return torch.load(path, weights_only=True)


def load(net: nn.Module, width: float) -> None:
    """The trained weights into a network that may have other neurons: what it does not have is left out."""
    actual = net.load_state_dict(trained(width)["state"], strict=False)
    own = {f"{name}." for name, m in net.named_modules() if not any(m.children())} | {""}
    strange = [key for key in actual.missing_keys if not any(key.startswith(prefix) for prefix in own)]
    convolutions = [key for key in actual.missing_keys if "conv" in key]
    assert not strange and not convolutions, f"not the same network: {strange + convolutions}"


def rate_table(width: float) -> str:
    """The firing rate of every layer in evaluation."""
    actual = trained(width)
    values = list(actual["rates"].values())
    lines = [f"**Firing rates, width {width:g}** ({actual['steps']} steps, loss {actual['loss']:.2f}): mean "
             f"{sum(values) / len(values):.1%}\n", "| layer | rate |", "|---|---|"]  # fmt: skip
    return "\n".join(lines + [f"| {name} | {rate:.1%} |" for name, rate in actual["rates"].items()])


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        print(rate_table(float(argument)))
