"""The settings from which a network is built: shapes, task, and its choice of neurons, norms and width."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Real
from typing import NamedTuple

from torch import nn

from steadyspike.nn.factory import NeuronLike, Site, neuron_for, starting_threshold
from steadyspike.nn.lif import LIF
from steadyspike.nn.neurons import as_neuron
from steadyspike.nn.norm import NORMS, NormLike, check_norm, make_norm
from steadyspike.nn.whole import whole_number

CHANNEL_MULTIPLE = 8


class Shape(NamedTuple):
    """The shape of one sample at one time step: channels, height, width."""

    channels: int
    height: int
    width: int

    def conv(self, channels: int, stride: int = 1) -> Shape:
        """Returns the shape after a padded convolution (or a padded 3x3 pooling) of this stride."""
        return Shape(channels, -(-self.height // stride), -(-self.width // stride))

    def pooled(self, size: int = 2) -> Shape:
        """Returns the shape after a pooling without padding."""
        if min(self.height, self.width) < size:
            raise ValueError(
                f"the image is too small for this network: {self.height}x{self.width} is left where it pools by "
                f"{size}; give a larger image_size"
            )
        return Shape(self.channels, self.height // size, self.width // size)

    @property
    def features(self) -> int:
        return self.channels * self.height * self.width


def image_sides(size: int | tuple[int, int]) -> tuple[int, int]:
    """Returns (height, width) from one side of a square or from both sides."""
    sides = tuple(size) if isinstance(size, (tuple, list)) else (size, size)
    if len(sides) != 2:
        raise ValueError(f"image_size must be one side or (height, width), got {size!r}")
    return whole_number(sides[0], "image_size"), whole_number(sides[1], "image_size")


class Task(NamedTuple):
    """The task of a network: its number of classes and the shape of its images."""

    num_classes: int
    image: Shape


@dataclass(frozen=True)
class Parts:
    """The settings that all layers of a network share.

    neuron: a name of `steadyspike.nn.neurons.NEURONS`, a callable without arguments (``ss.LIF``, ``partial(ss.LIF,
        tau=1.5)``), or an object with ``.at(site)``.
    norm: a name of `steadyspike.nn.norm.NORMS`, or a callable from channels to a module on [T, B, C, ...]
    timesteps: T for parameters per step, and the default T for static images
    width: factor of every channel count, see `channels`
    conv_bias: give convolutions a bias (as TEBN's and TET's code do; the norm that follows cancels its effect)
    norm_threshold, residual_alpha: tdBN's V_th (None: the neuron's starting V), and its alpha if a norm's output is
        added to a shortcut. Only ``"tdbn-scaled"`` and ``"tdbn-gamma"`` use them; the paper's "tdBN" has neither.
    """

    neuron: NeuronLike = LIF
    norm: NormLike = "tdbn"
    timesteps: int = 4
    width: float = 1.0
    conv_bias: bool = False
    norm_threshold: float | None = None
    residual_alpha: float = 2**-0.5

    def __post_init__(self) -> None:
        object.__setattr__(self, "neuron", as_neuron(self.neuron))
        object.__setattr__(self, "timesteps", whole_number(self.timesteps, "timesteps"))
        check_norm(self.norm)
        if not (isinstance(self.width, Real) and 0 < self.width < math.inf):
            raise ValueError(f"width must be a number above 0, got {self.width!r}")

    def channels(self, full: int) -> int:
        """Returns ``full * width``, rounded to a multiple of 8, at least 8; exactly ``full`` at width 1."""
        if self.width == 1:
            return full
        return max(CHANNEL_MULTIPLE, round(full * self.width / CHANNEL_MULTIPLE) * CHANNEL_MULTIPLE)

    def make_neuron(self, shape: Shape, threshold: float | None = None) -> nn.Module:
        """Returns a neuron layer for [T, B, C, H, W].

        threshold: its starting V; None: that of the other neurons
        """
        return neuron_for(self.neuron, Site(shape.channels, (shape.height, shape.width), self.timesteps), threshold)

    def make_map_neuron(self, heads: int, size: int, threshold: float | None = None) -> nn.Module:
        """Returns a neuron layer for attention maps [T, B, heads, size]; its channels are the heads."""
        return neuron_for(self.neuron, Site(heads, (size,), self.timesteps), threshold)

    def make_flat_neuron(self, features: int) -> nn.Module:
        """Returns a neuron layer for [T, B, features]."""
        return neuron_for(self.neuron, Site(features, (), self.timesteps))

    def make_norm(self, channels: int, residual: bool = False) -> nn.Module:
        """Returns a norm on [T, B, C, ...].

        residual: True if its output is added to a shortcut
        """
        alpha, threshold = self.residual_alpha if residual else 1.0, self.norm_threshold
        if threshold is None and isinstance(self.norm, str) and NORMS[self.norm].scaled:
            threshold = starting_threshold(self.neuron, Site(channels, (1, 1), self.timesteps))
        return make_norm(self.norm, channels, timesteps=self.timesteps, threshold=threshold, alpha=alpha)
