"""Training on a device without float64 (Apple's GPU), which is played by a CPU on which no operation may make one."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import steadyspike as ss
from steadyspike.core import widest
from steadyspike.train.recipe import RecipeError, load_recipe
from steadyspike.train.run.accelerator import accelerator_of
from steadyspike.train.watch.layers import GradientWatch, LayerWatch, layer_rows
from steadyspike.train.watch.scores import ScoreSums


class NoFloat64(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if any(isinstance(t, torch.Tensor) and t.dtype == torch.float64 for t in tree_leaves(out)):
            raise TypeError(f"{func} made a float64 tensor")
        return out


def step(model, x, target, watch, gradients, sums):
    """A training step with the trainer's watchers, then an evaluation."""
    logits = model(x)
    loss = torch.nn.functional.cross_entropy(logits.mean(0), target)
    loss.backward()
    gradients.add(gradients.norms(loss)[0])
    _ = watch.active
    model.eval()
    with torch.no_grad():
        sums.add(loss, model(x), target, lambda logits: logits.mean(0))


@pytest.mark.parametrize("norm", ["tdbn", "tebn", "tab"])
def test_a_training_step_makes_no_float64(norm, monkeypatch):
    torch.manual_seed(0)
    model = ss.models.create("resnet19_tiny", timesteps=2, norm=norm, neuron=partial(ss.LIF, backend="reference"))
    x, target = torch.rand(4, 3, 16, 16), torch.arange(4)
    watch, gradients, sums = LayerWatch(model, 2), GradientWatch(model), ScoreSums(2)
    with pytest.raises(TypeError, match="made a float64"), NoFloat64():
        step(model, x, target, watch, gradients, sums)
    model.train()
    monkeypatch.setattr(widest, "WITHOUT_FLOAT64", {"cpu"})
    watch.rates = watch.rates.float()  # as when they move to a device that is not the CPU
    with NoFloat64():
        step(model, x, target, watch, gradients, sums)
    assert sums.scores().samples == 4
    assert all(row.threshold > 0 for row in layer_rows(watch, gradients)[:-1])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ([], "torch sees no Apple GPU here"),
        (["train.precision=bf16"], "it must be 'fp32'"),
        (["train.devices=2"], "it must be 1"),
        (["neuron.backend=cpu"], "does not run on mps"),
    ],
)
def test_what_mps_needs_is_named(settings, message):
    if torch.backends.mps.is_available():
        pytest.skip("there is an Apple GPU")
    with pytest.raises(RecipeError, match=message):
        accelerator_of(load_recipe("tiny", ["train.accelerator=mps", *settings]))
