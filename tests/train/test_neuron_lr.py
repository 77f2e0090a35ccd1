"""`optimizer.lr_neurons`: V and tau learn with a rate of their own, on the same schedule."""

from __future__ import annotations

import pytest
import torch

import steadyspike as ss
from steadyspike.nn.groups import neuron_parameters
from steadyspike.train.build.optimizer import build_optimizer, build_schedule
from steadyspike.train.recipe import load_recipe


@pytest.mark.parametrize("name", ["sgd", "adamw", "muon"])
@pytest.mark.parametrize("groups", ["decay", "kinds"])
def test_neurons_have_their_own_rate(name: str, groups: str) -> None:
    settings = [f"optimizer.name={name}", f"optimizer.groups={groups}", "optimizer.lr=0.1", "optimizer.lr_neurons=0.02"]
    recipe = load_recipe("tiny", [*settings, "schedule.epochs=4"])
    model = ss.models.create("resnet19_tiny")
    optimizer = build_optimizer(recipe.optimizer, model)
    schedule = build_schedule(recipe, optimizer, steps_per_epoch=2)
    neurons, rates = neuron_parameters(model), []
    for _ in range(8):
        by_parameter = {p: group["lr"] for group in optimizer.param_groups for p in group["params"]}
        assert by_parameter.keys() == set(model.parameters())
        own = {rate for p, rate in by_parameter.items() if p in neurons}
        others = {rate for p, rate in by_parameter.items() if p not in neurons}
        assert len(own) == len(others) == 1
        rates.append((own.pop(), others.pop()))
        optimizer.step()
        schedule.step()
    assert rates[0][1] > rates[-1][1] > 0
    torch.testing.assert_close([0.2 * other for _, other in rates], [own for own, _ in rates])


def test_without_the_key_the_groups_are_as_before() -> None:
    model = ss.models.create("resnet19_tiny")
    groups = build_optimizer(load_recipe("tiny").optimizer, model).param_groups
    assert len(groups) == 2 and len({group["lr"] for group in groups}) == 1
