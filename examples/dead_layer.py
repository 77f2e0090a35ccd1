"""The dead-layer trap, measured on the embedded digits.

A fully connected layer at PyTorch's default initialisation gives its neurons currents far below V = 1. They never fire,
the surrogate gradient is 0 outside its window, nothing learns, and nothing complains. Four runs of the same network:
unchanged, with a norm before each neuron, with larger weights, and with lowered thresholds.

    python examples/dead_layer.py
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import steadyspike as ss
from steadyspike.data.sets.digits import originals
from steadyspike.models.wake import wake
from steadyspike.models.weight_init import fire
from steadyspike.nn.model_check import check_model, firing_rates
from steadyspike.nn.norm import make_norm
from steadyspike.nn.time import repeat_in_time

STEPS, HIDDEN = 4, 128


class MLP(nn.Module):
    """64 - 128 - 128 - 10, LIF after the first two; static [B, 64] -> [T, B, 10]."""

    def __init__(self, norm: str = "none") -> None:
        super().__init__()
        self.fc1, self.norm1, self.lif1 = nn.Linear(64, HIDDEN), make_norm(norm, HIDDEN), ss.LIF()
        self.fc2, self.norm2, self.lif2 = nn.Linear(HIDDEN, HIDDEN), make_norm(norm, HIDDEN), ss.LIF()
        self.fc3 = nn.Linear(HIDDEN, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = repeat_in_time(x, STEPS)
        x = self.lif1(self.norm1(self.fc1(x)))
        x = self.lif2(self.norm2(self.fc2(x)))
        return self.fc3(x)


def digits() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Train and test images in [0, 1] and labels, every fifth digit for test."""
    images, labels = originals()
    x, y = torch.tensor(images, dtype=torch.float32).flatten(1) / 16, torch.tensor(labels)
    test = torch.arange(len(x)) % 5 == 0
    return x[~test], y[~test], x[test], y[test]


def train(model: nn.Module, epochs: int = 5) -> float:
    """Test accuracy after a few epochs of Adam."""
    x, y, x_test, y_test = digits()
    optimizer = torch.optim.Adam(ss.parameter_groups(model, weight_decay=0.0), lr=3e-3)
    model.train()
    for _ in range(epochs):
        for batch in torch.randperm(len(x)).split(64):
            optimizer.zero_grad()
            F.cross_entropy(model(x[batch]).mean(0), y[batch]).backward()
            optimizer.step()
    model.eval()
    with torch.no_grad():
        return (model(x_test).mean(0).argmax(1) == y_test).float().mean().item()


def larger_weights(model: MLP) -> None:
    """Currents of spread V: the pixels' mean square is about 0.14, that of the first layer's spikes about 0.1."""
    fire(model.fc1, mean_square=0.14)
    fire(model.fc2, mean_square=0.1)


def runs() -> dict[str, tuple[str, Callable[[MLP], object]]]:
    """By title: the norm, and what is done to the new network."""
    x = digits()[0]
    return {
        "default": ("none", lambda model: None),
        "norm before each LIF": ("tdbn", lambda model: None),
        "larger weights (fire)": ("none", larger_weights),
        "lower thresholds (wake)": ("none", lambda model: wake(model, x)),
    }


def main() -> None:
    x = digits()[0]
    for title, (norm, prepare) in runs().items():
        torch.manual_seed(0)
        model = MLP(norm)
        prepare(model)
        rates = firing_rates(model, x)
        rates_text = ", ".join(f"{name} {rate:.3f}" for name, rate in rates.items())
        for failure in check_model(model, x[:16], batch_dim=0).failures:
            if failure.name == "activity":
                print(f"  check_model: {failure.message}")
        print(f"{title:<24} rates at the start: {rates_text}; accuracy {train(model):.3f}")


if __name__ == "__main__":
    main()
