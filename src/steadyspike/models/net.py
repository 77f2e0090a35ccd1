"""`SpikingNet`: a network of stem, body and head, for static images and for frames."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from steadyspike.nn.fused import must_be_called
from steadyspike.nn.time import repeat_in_time
from steadyspike.nn.whole import whole_number


class SpikingNet(nn.Module):
    """A network of stem, body and head: ``forward(x, timesteps=None) -> [T, B, classes]``.

    A static batch [B, C, H, W] is repeated T times without copying it, and the stem's convolution and norm run only
    once (`blocks.conv.ConvNorm` recognises the repetition). For frames [T, B, C, H, W], T is the number of frames.

    ``streams``: for each residual stream that is a sum of spikes, the names of the neuron layers that write to it;
    empty if the network adds no spikes (see `steadyspike.models.streams`)
    ``streams_tied``: whether all layers of a stream have the same threshold
    ``made_of``: the arguments of `create`, if all of them can be written down without code
    """

    def __init__(self, stem: nn.Module, body: nn.Module, head: nn.Module, *, in_channels: int, timesteps: int) -> None:
        super().__init__()
        self.stem, self.body, self.head = stem, body, head
        self.in_channels, self.timesteps = in_channels, timesteps
        self.streams: list[list[str]] = []
        self.streams_tied = False
        self.made_of: dict[str, Any] | None = None

    def forward(self, x: Tensor, timesteps: int | None = None) -> Tensor:
        return self.head(_one_by_one(self.body, self.stem(self.frames(x, timesteps))))

    def frames(self, x: Tensor, timesteps: int | None = None) -> Tensor:
        """Returns ``x`` as [T, B, C, H, W]: a view, with a time stride of 0 for static images."""
        if x.ndim not in (4, 5) or x.shape[-3] != self.in_channels:
            c = self.in_channels
            raise ValueError(
                f"the model takes static images [B, {c}, H, W] or frames [T, B, {c}, H, W], got shape {list(x.shape)}"
            )
        if not x.is_floating_point():
            raise TypeError(f"the model takes floating-point images, got {x.dtype}; scale them, e.g. x.float() / 255")
        if x.ndim == 4:
            return repeat_in_time(x, self.timesteps if timesteps is None else whole_number(timesteps, "timesteps"))
        if timesteps not in (None, x.shape[0]):
            raise ValueError(f"the input has {x.shape[0]} frames, so timesteps={timesteps} cannot be; leave it out")
        return x


def _one_by_one(body: nn.Module, x: Tensor) -> Tensor:
    """Computes ``body(x)`` and releases every layer's input once the layer has run.

    A call of a container would keep its input until its last layer has run, for example the stem's spikes or those of a
    stage.
    """
    for layer in _layers(body):
        x = layer(x)
    return x


def _layers(module: nn.Module) -> list[nn.Module]:
    """Returns the layers of nested containers in their order.

    A layer with hooks or changed methods, or one that was compiled, is kept as one layer.
    """
    if type(module) is not nn.Sequential or must_be_called(module):
        return [module]
    return [layer for child in module for layer in _layers(child)]
