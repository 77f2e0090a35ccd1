"""A registered network with SpikingJelly's neurons, for a recipe: ``model.name = "benchmarks.peer_network:resnet19"``.

It has torch's own convolutions; norms and initial weights are like ours. The neurons are SpikingJelly's
ParametricLIFNode with its default surrogate and the recipe's threshold, which SpikingJelly does not learn.
"""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.contenders import SpikingJelly
from torch import nn

import steadyspike as ss


def resnet19(
    num_classes: int,
    timesteps: int,
    width: float,
    neuron: Callable[[], ss.LIF],
    norm: str = "tdbn",
    norm_threshold: float = 1.0,
    dropout: float = 0.0,
) -> nn.Module:
    """Returns a ResNet-19 with SpikingJelly's neurons; it takes [B, 3, H, W] and returns [T, B, classes]."""
    threshold = neuron().threshold.item()

    def peer() -> nn.Module:
        layer = SpikingJelly()
        layer.node.v_threshold = threshold
        return layer

    net = ss.models.create(
        "resnet19", num_classes=num_classes, timesteps=timesteps, width=width, neuron=peer, norm=norm,
        norm_threshold=norm_threshold, dropout=dropout,
    )  # fmt: skip
    ss.use_dense(net)
    return net
