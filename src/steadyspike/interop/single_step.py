"""Runs `ss.check_model` on a converted model, also on one that takes one time step per call."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from steadyspike.interop.adopted import Adopted
from steadyspike.interop.window import window
from steadyspike.nn.model_check import Check, CheckReport, check_model


class Looped(nn.Module):
    """A single-step model as one that takes [T, B, ...]: a loop over time in a window of its own."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        with window(self.model):
            return torch.stack([first_tensor(self.model(x_t)) for x_t in x])


class FirstOutput(nn.Module):
    """A model whose output is the first tensor of what ``model`` returns (spikes, and not the state after them)."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        with window(self.model):
            return first_tensor(self.model(x))


def first_tensor(output: object) -> Tensor:
    while isinstance(output, (tuple, list)) and output:
        output = output[0]
    if not isinstance(output, Tensor):
        raise TypeError(f"the model returns {type(output).__name__}, which has no tensor to compare")
    return output


def is_single_step(model: nn.Module) -> bool:
    """True if a neuron takes one step per call and no container loops over time for it."""
    inside = {
        child
        for module in model.modules()
        if any(cls.__name__ in ("MultiStepContainer", "TLastMultiStepContainer") for cls in type(module).__mro__)
        for child in module.modules()
    }
    single = (m for m in model.modules() if isinstance(m, Adopted) and getattr(m, "step_mode", "m") == "s")
    return any(module not in inside for module in single)


def checked(model: nn.Module, example: Tensor, batch_dim: int) -> CheckReport:
    """`ss.check_model` of the model, in a loop over time if it takes single steps."""
    wrap = Looped if is_single_step(model) and batch_dim == 1 else FirstOutput
    report = check_model(wrap(model), example, batch_dim=batch_dim)
    return CheckReport([_in_the_model(check) for check in report.checks])


def _in_the_model(check: Check) -> Check:
    """The check with the layer's name in the user's model instead of the name in the wrapper."""
    layer = None if check.layer is None else check.layer.removeprefix("model.")
    return replace(check, layer=layer, message=check.message.replace("'model.", "'"))
