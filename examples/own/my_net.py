"""A network of your own, trained from the command line: ``steadyspike train my_run.toml`` in this folder."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from steadyspike.nn import Folded, repeat_in_time


class Net(nn.Module):
    """Two convolutions with spiking neurons, and a linear head. Returns logits of every time step.

    The command line calls it with keyword arguments; it takes those that it needs. ``hidden`` is an option of its own,
    which the recipe sets as ``model.options = { hidden = 24 }``.
    """

    def __init__(
        self,
        num_classes: int,
        in_channels: int,
        timesteps: int,
        neuron: Callable[..., nn.Module],
        hidden: int = 16,
    ) -> None:
        super().__init__()
        self.timesteps = timesteps
        self.stem = nn.Sequential(nn.Conv2d(in_channels, hidden, 3, padding=1, bias=False), nn.BatchNorm2d(hidden))
        self.fire1 = neuron(hidden)  # the recipe's [neuron], for this many channels
        self.block = Folded(nn.Sequential(nn.Conv2d(hidden, hidden, 3, 2, 1, bias=False), nn.BatchNorm2d(hidden)))
        self.fire2 = neuron(hidden)
        self.head = nn.Linear(hidden, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """[B, C, H, W] -> [T, B, classes]"""
        spikes = self.fire1(repeat_in_time(self.stem(x), self.timesteps))
        return self.head(self.fire2(self.block(spikes)).mean((-1, -2)))
