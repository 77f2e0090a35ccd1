"""Runs `ss.check_model` on a converted model, also on one that takes one time step per call."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor, nn

from steadyspike.interop.adopted import Adopted
from steadyspike.interop.window import window
from steadyspike.nn.model_check import Check, CheckReport, check_model


class Looped(nn.Module):
    """Wraps a single-step model so that it takes [T, B, ...]: a loop over time in its own window."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        outputs: list[Tensor] = []
        state = None
        with window(self.model):
            for x_t in x:
                out = self.model(x_t) if state is None else self.model(x_t, state)
                outputs.append(first_tensor(out))
                if explicit_state(self.model):
                    state = out[1]
        return torch.stack(outputs)


class FirstOutput(nn.Module):
    """A model whose output is the first tensor that ``model`` returns (spikes, and not the state after them)."""

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
    """Returns True if a neuron takes one step per call and nothing in the model loops over time for it.

    A cell of Norse takes single steps unless a Lift scans it. For a hidden state of snnTorch in a plain Sequential, the
    user writes the loop.
    """
    if type(model) is nn.Sequential and any(getattr(m, "init_hidden", False) for m in model.modules()):
        return True
    if explicit_state(model):
        return True
    inside = {
        child
        for module in model.modules()
        if any(cls.__name__ in ("MultiStepContainer", "TLastMultiStepContainer") for cls in type(module).__mro__)
        for child in module.modules()
    }
    single = (m for m in model.modules() if isinstance(m, Adopted) and getattr(m, "step_mode", "m") == "s")
    return any(module not in inside for module in single)


def explicit_state(model: nn.Module) -> bool:
    """Returns True for a model of Norse's cells that returns its state and takes it with the next step."""
    sequential = any(cls.__name__ == "SequentialState" for cls in type(model).__mro__)
    cells = [m for m in model.modules() if isinstance(m, Adopted) and hasattr(m, "sequence")]
    single = all(any(cls.__name__ == "SNNCell" for cls in type(m).__mro__) for m in cells)
    return bool(cells) and single and (sequential or cells[0] is model)


@torch.no_grad()
def call_counts(model: nn.Module, example: Tensor) -> Counter[nn.Module]:
    """Returns how often one forward of ``model`` in evaluation mode calls each converted neuron; empty if it fails."""
    calls: Counter[nn.Module] = Counter()
    with _attributes_restored(model):
        model.eval()
        for layer in (m for m in model.modules() if isinstance(m, Adopted)):
            layer._fired = layer._last = None  # an open window is not closed here; it continues afterwards
            layer.end_state()
            layer.register_forward_hook(lambda layer, args, out: calls.update([layer]))
        try:
            model(example)
        except Exception:  # a model that takes [B, ...] may raise any error for [T, B, ...]
            return Counter()
    return calls


@contextmanager
def _attributes_restored(model: nn.Module) -> Iterator[None]:
    """Restores every attribute of every module at the end: modes, hooks, and states that neurons store in them."""
    kept = [(m.__dict__, dict(m.__dict__)) for m in model.modules()]
    kept += [(value, dict(value)) for _, attributes in kept for value in attributes.values() if isinstance(value, dict)]
    try:
        yield
    finally:
        for owner, content in kept:
            owner.clear()
            owner.update(content)


def loops_itself(model: nn.Module, example: Tensor) -> bool:
    """True if one call with ``example`` [T, B, ...] calls a single-step neuron T times: its forward has the loop."""
    single = {m: count for m, count in call_counts(model, example).items() if getattr(m, "step_mode", "m") == "s"}
    return len(example) > 1 and any(count >= len(example) for count in single.values())


def checked(model: nn.Module, example: Tensor, batch_dim: int) -> CheckReport:
    """Runs `ss.check_model`, in a loop over time if the model takes single steps and has no such loop itself."""
    single = batch_dim == 1 and is_single_step(model) and not loops_itself(model, example)
    wrapped = Looped(model) if single else FirstOutput(model)
    wrapped.training = model.training
    report = check_model(wrapped, example, batch_dim=batch_dim)
    return CheckReport([_in_the_model(check) for check in report.checks])


def _in_the_model(check: Check) -> Check:
    """Returns the check with the layer's name in the user's model instead of its name in the wrapper."""
    layer = None if check.layer is None else "" if check.layer == "model" else check.layer.removeprefix("model.")
    message = check.message.replace("layer 'model'", "the model itself").replace("'model.", "'")
    return replace(check, layer=layer, message=message)
