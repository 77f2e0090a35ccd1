"""A recurrent network with MP-Init: the spikes of step t are part of the input of step t + 1.

Each digit is read row by row, 8 steps of 8 pixels. A loop over time calls `scan` with one step; `ss.window` around the
loop marks the sequence, so that MP-Init learns its start from it (without a window the mean would stay at 0).

    python examples/recurrent.py
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import steadyspike as ss
from steadyspike.data.sets.digits import originals

ROWS = COLUMNS = 8


class Recurrent(nn.Module):
    """[T, B, 8] -> [T, B, 10]: one hidden LIF layer that also hears its own spikes of the step before."""

    def __init__(self, hidden: int = 128, init: str = "mp") -> None:
        super().__init__()
        self.inputs, self.norm = nn.Linear(COLUMNS, hidden), nn.LayerNorm(hidden)
        self.back = nn.Linear(hidden, hidden, bias=False)
        self.lif, self.readout = ss.LIF(init=init), nn.Linear(hidden, 10)
        nn.init.normal_(self.back.weight, std=0.5 / hidden**0.5)

    def forward(self, x: Tensor) -> Tensor:
        current = self.norm(self.inputs(x))
        spikes, state, outputs = torch.zeros_like(current[0]), None, []
        with ss.window(self):
            for current_t in current:
                out, state = self.lif.scan((current_t + self.back(spikes))[None], state)
                spikes = out[0]
                outputs.append(self.readout(spikes))
        return torch.stack(outputs)


def digits() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Train and test digits as rows over time, [8, N, 8] in [0, 1], and labels; every fifth digit for test."""
    images, labels = originals()
    x, y = torch.tensor(images, dtype=torch.float32).view(-1, ROWS, COLUMNS).transpose(0, 1) / 16, torch.tensor(labels)
    test = torch.arange(len(y)) % 5 == 0
    return x[:, ~test], y[~test], x[:, test], y[test]


def train(model: nn.Module, epochs: int = 10) -> float:
    """Test accuracy after some epochs of Adam; the answer is read after the last row."""
    x, y, x_test, y_test = digits()
    optimizer = torch.optim.Adam(ss.parameter_groups(model, weight_decay=0.0), lr=3e-3)
    model.train()
    for _ in range(epochs):
        for batch in torch.randperm(len(y)).split(64):
            optimizer.zero_grad()
            F.cross_entropy(model(x[:, batch])[-1], y[batch]).backward()
            optimizer.step()
    model.eval()
    with torch.no_grad():
        return (model(x_test)[-1].argmax(1) == y_test).float().mean().item()


def main() -> None:
    print(ss.check_model(Recurrent(), digits()[0][:, :16]))
    for init in ("zero", "mp"):
        torch.manual_seed(0)
        model = Recurrent(init=init)
        accuracy = train(model)
        start = f"; learned start {float(model.lif.running_mean):.3f}" if init == "mp" else ""
        print(f"init={init:<5} test accuracy {accuracy:.3f}{start}")


if __name__ == "__main__":
    main()
