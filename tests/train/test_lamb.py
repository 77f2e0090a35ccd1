"""LAMB by its formula, and schedules that move every step and cool down."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch

import steadyspike as ss
from steadyspike.train.build.optimizer import Lamb, lr_factor
from steadyspike.train.recipe.schema import Schedule


def test_first_step_by_hand() -> None:
    w = torch.nn.Parameter(torch.tensor([3.0, 4.0]))
    free = torch.nn.Parameter(torch.tensor([1.0]))
    optimizer = Lamb([{"params": [w], "weight_decay": 0.1}, {"params": [free], "weight_decay": 0.0}], lr=0.01)
    w.grad, free.grad = torch.tensor([0.3, -0.4]), torch.tensor([0.5])
    optimizer.step()
    # After one step the corrected moments are g and g^2: the direction is the sign, plus decay.
    update = torch.tensor([1.0, -1.0]) + 0.1 * torch.tensor([3.0, 4.0])
    torch.testing.assert_close(
        w.data, torch.tensor([3.0, 4.0]) - 0.01 * 5.0 / update.norm() * update, rtol=1e-5, atol=1e-6
    )
    torch.testing.assert_close(free.data, torch.tensor([0.99]), rtol=1e-5, atol=1e-6)


def test_long_gradients_are_shortened_together() -> None:
    moments = []
    for scale in (1.0, 100.0):
        w = torch.nn.Parameter(torch.tensor([3.0, 4.0]))
        optimizer = Lamb([w], lr=0.01, weight_decay=0.1)
        w.grad = scale * torch.tensor([3.0, 4.0])
        optimizer.step()
        moments.append(optimizer.state[w]["exp_avg"])
    torch.testing.assert_close(moments[0], moments[1])
    assert moments[0].norm() == pytest.approx(0.1)


def test_lamb_learns() -> None:
    torch.manual_seed(0)
    layer = torch.nn.Linear(8, 4)
    x, y = torch.randn(64, 8), torch.randint(0, 4, (64,))
    optimizer = Lamb(layer.parameters(), lr=0.02, weight_decay=0.01)
    losses = []
    for _ in range(60):
        loss = torch.nn.functional.cross_entropy(layer(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.9 * losses[0]


def test_cosine_every_step_with_warm_up_and_cool_down() -> None:
    table = Schedule(epochs=20, warmup=2, warmup_lr=1e-4, every="step", cooldown=3, min_lr=1e-3)
    factors = [lr_factor(table, 1e-2, step, 10) for step in range(200)]
    assert factors[0] == pytest.approx(0.01) and factors[20] == pytest.approx(1.0)
    assert factors[10] == pytest.approx(0.01 + 0.99 / 2)
    assert factors[95] == pytest.approx(0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * 7.5 / 15)))
    assert all(f == pytest.approx(0.1) for f in factors[170:]) and factors[169] > 0.1
    assert all(a > b for a, b in pairwise(factors[20:170]))
    steady = [lr_factor(Schedule(epochs=20, min_lr=1e-3), 1e-2, step, 10) for step in (50, 59)]
    assert steady[0] == steady[1]
    with pytest.raises(ValueError, match=r"schedule.cooldown = 18 leaves nothing"):
        Schedule(epochs=20, warmup=2, cooldown=18)


def test_the_cosine_of_timm_is_hidden_by_its_warm_up() -> None:
    table = Schedule(epochs=13, warmup=4, warmup_lr=1e-4, cooldown=3, min_lr=1e-3, cosine_from="start")
    factors = [lr_factor(table, 1e-2, step, 2) for step in range(26)]
    assert factors[:8] == pytest.approx([0.01 + 0.99 * step / 8 for step in range(8)])
    low = 0.1
    whole = [low + (1 - low) * 0.5 * (1 + math.cos(math.pi * min(1.0, epoch / 10))) for epoch in range(13)]
    assert factors[8::2] == pytest.approx(whole[4:]) and factors[9::2] == pytest.approx(whole[4:])


def test_memory_is_estimated_for_it() -> None:
    layer = torch.nn.Sequential(torch.nn.Linear(4, 4))
    adam, lamb = (ss.memory_estimate(layer, torch.randn(2, 3, 4), optimizer=name) for name in ("adamw", "lamb"))
    assert adam.optimizer == lamb.optimizer > 0
