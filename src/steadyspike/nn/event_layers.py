"""`use_events`: convolutions and linear layers that add the weights of the neurons that fired, if that is faster.

The layers keep their parameters, names and checkpoints. They decide at every call. If the input is not spikes, or the
dense layer is faster, they run torch's own layer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from steadyspike.kernels.conv.call import ConvInput
from steadyspike.kernels.conv.function import conv_input, spike_conv2d, spike_linear

T = TypeVar("T")
Model = TypeVar("Model", bound=nn.Module)


class EventConv2d(nn.Conv2d):
    """`torch.nn.Conv2d` that computes by events if its input is spikes and that is faster."""

    def forward(self, input: Tensor) -> Tensor:
        out = self._by_events(spike_conv2d, input)
        return self.dense(input) if out is None else out

    def as_input(self, input: Tensor) -> ConvInput | None:
        """Returns the convolution of ``input`` [N, C, H, W] for a scan that computes it itself, without gradients.

        For tensors for which `steps_aside` is False. Returns None if torch's own convolution should run (`dense`).
        """
        return self._by_events(conv_input, input)

    def dense(self, input: Tensor) -> Tensor:
        """Returns the output of torch's convolution."""
        if self._skips_pixels and torch.is_grad_enabled() and input.is_cpu and not torch.compiler.is_compiling():
            # The weight gradient of torch 2.13 damages the heap with some shapes (two threads, channels_last, 5 images
            # of 8 channels and 16 x 16 pixels). A convolution without a stride, of the pixels that are read, does not.
            rows, columns = self.stride
            return F.conv2d(input[..., ::rows, ::columns], self.weight, self.bias)
        return super().forward(input)

    @property
    def _skips_pixels(self) -> bool:
        if self.kernel_size != (1, 1) or self.stride == (1, 1) or "_conv_forward" in self.__dict__:
            return False
        return self.groups == 1 and self.padding in ((0, 0), "valid")

    def _by_events(self, compute: Callable[..., T | None], input: Tensor) -> T | None:
        padding = None if "_conv_forward" in self.__dict__ else self._symmetric_padding()
        if self.groups != 1 or padding is None or input.ndim != 4:
            return None
        return compute(input, self.weight, self.bias, self.stride, padding, self.dilation)

    def _symmetric_padding(self) -> tuple[int, int] | None:
        """Returns the zeros on each side of (rows, columns); None for another kind of padding."""
        if self.padding_mode != "zeros":
            return None
        if not isinstance(self.padding, str):
            return self.padding  # type: ignore[return-value]
        if self.padding == "valid":
            return 0, 0
        total = [d * (k - 1) for d, k in zip(self.dilation, self.kernel_size)]
        return None if any(t % 2 for t in total) else (total[0] // 2, total[1] // 2)


class EventLinear(nn.Linear):
    """`torch.nn.Linear` that computes by events if its input is spikes and that is faster."""

    def forward(self, input: Tensor) -> Tensor:
        out = spike_linear(input, self.weight, self.bias)
        return F.linear(input, self.weight, self.bias) if out is None else out


_DENSE_TO_EVENTS: dict[type[nn.Module], type[nn.Module]] = {nn.Conv2d: EventConv2d, nn.Linear: EventLinear}
_EVENTS_TO_DENSE = {events: dense for dense, events in _DENSE_TO_EVENTS.items()}


def use_events(model: Model) -> Model:
    """Makes convolutions and linear layers compute by events if that is faster; changes and returns ``model``.

    Outputs and gradients agree with the dense layers up to rounding; parameters and checkpoints are the same. It works
    for float32 on the CPU. Elsewhere, and under torch.compile, autocast and torch.func, the layers run torch's own
    code. `use_dense` undoes it.
    """
    return _swap(model, _DENSE_TO_EVENTS)


def use_dense(model: Model) -> Model:
    """Undoes `use_events` and returns ``model``."""
    return _swap(model, _EVENTS_TO_DENSE)


def _swap(model: Model, classes: dict[type[nn.Module], type[nn.Module]]) -> Model:
    for module in model.modules():
        if type(module) in classes:
            module.__class__ = classes[type(module)]
    return model
