"""Weight initialisations by name, as in the official code of each network, and `fire` for layers without a norm."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol, runtime_checkable

from torch import nn

from steadyspike.models.blocks.head import Head


def _default(model: nn.Module) -> None:
    """PyTorch's default: uniform in +-1/sqrt(fan_in) for weights and biases."""


def _kaiming_fan_out(model: nn.Module) -> None:
    for m in model.modules():
        if isinstance(m, nn.Conv2d):
            nn.init.kaiming_normal_(m.weight, mode="fan_out", nonlinearity="relu")


def _imagenet(model: nn.Module) -> None:
    _kaiming_fan_out(model)
    for m in model.modules():
        if isinstance(m, nn.Linear):
            nn.init.normal_(m.weight, 0, 0.01)
            nn.init.zeros_(m.bias)


def _trunc_normal(model: nn.Module, chosen: Callable[[nn.Module], bool]) -> None:
    """Truncated normal(0, 0.02), bias 0, for the chosen convolutions and fully connected layers."""
    for m in model.modules():
        if isinstance(m, (nn.Conv2d, nn.Linear)) and chosen(m):
            # Other versions of torch draw other numbers here; the recorded runs were made with these.
            nn.init.trunc_normal_(m.weight, std=0.02)
            if m.bias is not None:
                nn.init.zeros_(m.bias)


def _is_token_layer(m: nn.Module) -> bool:
    """Returns True for layers that are nn.Linear in the official code: the head, and 1x1 convolutions on tokens."""
    return isinstance(m, nn.Linear) or (isinstance(m, nn.Conv2d) and m.kernel_size == (1, 1) and m.stride == (1, 1))


INITS: dict[str, Callable[[nn.Module], None]] = {
    "default": _default,
    "kaiming_fan_out": _kaiming_fan_out,
    "imagenet": _imagenet,
    "trunc_linear": lambda model: _trunc_normal(model, lambda m: isinstance(m, nn.Linear)),
    "trunc_tokens": lambda model: _trunc_normal(model, _is_token_layer),
    "trunc_conv": lambda model: _trunc_normal(model, lambda m: isinstance(m, nn.Conv2d)),
    "trunc_all": lambda model: _trunc_normal(model, lambda m: True),
}


@runtime_checkable
class Residual(Protocol):
    """A residual block that names the last norm of its branch, so that the branch can start at zero."""

    def last_norm(self) -> nn.Module: ...


def initialise(model: nn.Module, init: str | Callable[[nn.Module], None], *, zero_residual: bool = False) -> None:
    """Sets the weights of a new network in place.

    init: a name, or a function of the model. Names:
        - ``"default"``: PyTorch's own (the paper's ResNet-19, TET's ResNet-19, MS-ResNet, SEW's CIFAR10-DVS network);
        - ``"kaiming_fan_out"``: convolutions normal with variance 2/fan_out (TEBN, TAB, TET's VGGSNN, SEW-ResNet-34);
        - ``"imagenet"``: the same, and fully connected layers normal(0, 0.01) with bias 0 (Spiking ResNet-34);
        - ``"trunc_linear"``, ``"trunc_tokens"``, ``"trunc_conv"``, ``"trunc_all"`` (transformers): truncated normal(0,
          0.02) with bias 0 for fully connected layers; for these and 1x1 convolutions; for convolutions; for all.
    zero_residual: the last norm of every residual branch starts at scale 0, so that the block starts as its shortcut
    (and at bias 1 if the branch is a gate that must be open: `SEWBlock` with ``"and"``)

    With every name, a fully connected layer before a neuron is initialised by `fire`, because with the other
    initialisations the neuron would not fire at V = 1. If ``init`` is a function, its weights are not changed later.
    """
    if isinstance(init, str) and init not in INITS:
        raise ValueError(f"unknown init {init!r}; known: {', '.join(INITS)}")
    if not isinstance(init, str):
        init(model)
    # tensors on the meta device have no values, and their normal_ is slow
    elif not any(p.is_meta for p in model.parameters()):
        INITS[init](model)
        fire_heads(model)
    for m in model.modules():
        if zero_residual and isinstance(m, Residual):
            weight = getattr(m.last_norm(), "weight", None)
            if weight is None:
                raise ValueError(f"zero_residual needs a norm with a scale called weight, not {m.last_norm()!r}")
            nn.init.zeros_(weight)
            _open_gate(m)


def _open_gate(block: Residual) -> None:
    """Sets the bias of the last norm if the block's branch gates its shortcut (``block.gate_bias``)."""
    value = getattr(block, "gate_bias", None)
    if value is None:
        return
    bias = getattr(block.last_norm(), "bias", None)
    if bias is None:
        raise ValueError(f"zero_residual with connect='and' needs a norm with a bias, not {block.last_norm()!r}")
    nn.init.constant_(bias, value)


def fire_heads(model: nn.Module) -> None:
    """Applies `fire` to every fully connected layer of a `Head` that feeds a neuron."""
    for m in model.modules():
        if isinstance(m, Head) and isinstance(m.fc1, nn.Linear) and not isinstance(m.lif, nn.Identity):
            fire(m.fc1)


def fire(layer: nn.Linear | nn.Conv2d, threshold: float = 1.0, mean_square: float = 0.02) -> None:
    """Initialises a layer that feeds a neuron without a norm: the current's standard deviation is ``threshold``.

    mean_square: expected mean square of the layer's inputs; 0.02 suits pooled spikes with a rate of about 0.1. The bias
    becomes 0. With PyTorch's default the current's standard deviation is sqrt(mean_square / 3) = 0.08. A neuron with V
    = 1 then never fires and, outside the surrogate's window, never learns to fire.
    """
    fan_in = layer.weight[0].numel()
    nn.init.normal_(layer.weight, 0, threshold / math.sqrt(fan_in * mean_square))
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
