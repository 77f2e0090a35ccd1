"""Firing rates per head: on S, saved, the same under checkpointing, accumulation and several processes, never NaN."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from steadyspike import models
from steadyspike.nn.attention.rates import LEAST_RATE, RunningRate
from tests.together import in_two_processes

NAME = "spikingresformer_tiny"


def spikes(rate: float = 0.3, seed: int = 0, batch: int = 4) -> Tensor:
    return (torch.rand(2, batch, 3, 5, 7, generator=torch.Generator().manual_seed(seed)) < rate).float()


def rates(model: torch.nn.Module) -> dict[str, Tensor]:
    return {n: b.clone() for n, b in model.named_buffers() if n.endswith((".rate", ".batches"))}


def images(batch: int = 4, seed: int = 1) -> Tensor:
    return torch.randn(batch, 3, 16, 16, generator=torch.Generator().manual_seed(seed))


def test_first_batch_sets_it_later_ones_move_it() -> None:
    layer, a, b = RunningRate(3, momentum=0.1), spikes(0.3), spikes(0.6, 1)
    expected = a.mean((0, 1, 3, 4))
    torch.testing.assert_close(layer(a), expected)
    torch.testing.assert_close(layer(b), 0.9 * expected + 0.1 * b.mean((0, 1, 3, 4)))
    moved = layer.rate.clone()
    assert torch.equal(layer.eval()(a), moved) and torch.equal(layer.rate, moved)


def test_a_float64_model_counts_in_float64() -> None:
    layer, a = RunningRate(3).double(), spikes(0.3).double()
    torch.testing.assert_close(layer(a), a.mean((0, 1, 3, 4)), rtol=1e-15, atol=0)


def test_it_counts_spikes_not_v_times_spikes() -> None:
    assert torch.equal(RunningRate(3)(0.25 * spikes()), RunningRate(3)(spikes()))


def test_silence_and_a_fresh_model_are_finite() -> None:
    assert torch.equal(RunningRate(3).eval()(spikes()), torch.ones(3))
    silent = spikes()
    silent[:, :, 1] = 0
    rate = RunningRate(3)(silent)
    assert rate[1] == pytest.approx(LEAST_RATE) and rate[0] > 0.1
    model = models.create(NAME).eval()
    assert model(images()).isfinite().all()
    model.train()
    assert model(torch.zeros(2, 3, 16, 16)).isfinite().all()


def test_saved_copied_and_kept_in_float32() -> None:
    model = models.create(NAME)
    model(images())
    other = models.create(NAME)
    other.load_state_dict(model.state_dict())
    for twin in (other, copy.deepcopy(model), copy.deepcopy(model).bfloat16()):
        assert all(torch.equal(a, b) for a, b in zip(rates(model).values(), rates(twin).values()))
    assert all(b.item() == 1 for n, b in rates(model).items() if n.endswith("batches"))


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing_moves_it_once_and_repeats_the_forward(reentrant: bool) -> None:
    x, grads, seen = images(), [], []
    for recompute in (False, True):
        torch.manual_seed(0)
        model = models.create(NAME)
        model(images(seed=2))  # so that the rates move and not only start
        stem = model.stem(model.frames(x))
        body = checkpoint(model.body, stem, use_reentrant=reentrant) if recompute else model.body(stem)
        model.head(body).square().mean().backward()
        grads.append({n: p.grad for n, p in model.named_parameters()})
        seen.append(rates(model))
    for name, g in grads[0].items():
        torch.testing.assert_close(grads[1][name], g, rtol=1e-5, atol=1e-7, msg=name)
    assert all(torch.equal(a, b) for a, b in zip(seen[0].values(), seen[1].values()))


def test_accumulation_moves_it_once_per_forward() -> None:
    layer, a, b = RunningRate(3, momentum=0.5), spikes(0.3), spikes(0.5, 1)
    x = a.clone().requires_grad_()
    loss = sum((part * layer(part).view(-1, 1, 1)).sum() for part in (x, b))
    loss.backward()
    torch.testing.assert_close(layer.rate, (a.mean((0, 1, 3, 4)) + b.mean((0, 1, 3, 4))) / 2)
    # The gradient is that of the rate each forward used.
    torch.testing.assert_close(x.grad[0, 0, :, 0, 0], a.mean((0, 1, 3, 4)))
    assert layer.batches.item() == 2


def shared_rate(rank: int) -> Tensor:
    layer = RunningRate(3)
    layer(spikes(batch=4)[:, 2 * rank : 2 * rank + 2])
    return layer.rate


def test_processes_share_the_rate_of_the_whole_batch(tmp_path: Path) -> None:
    actual = in_two_processes(shared_rate, tmp_path)
    expected = RunningRate(3)(spikes(batch=4))
    assert torch.equal(actual[0], actual[1])
    torch.testing.assert_close(actual[0], expected)


def test_momentum_is_checked() -> None:
    with pytest.raises(ValueError, match="weight of the new batch"):
        RunningRate(3, momentum=0.0)
