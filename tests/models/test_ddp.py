"""Whole networks under DDP: two gloo processes with half a batch each equal one process with the whole batch.

Three optimizer steps in float64, and one in float32 whose convolutions run by events. The transformers have most that
could go wrong; of the convolutional networks, which tests/train/test_group.py covers, there are two.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from steadyspike.kernels.conv import function
from steadyspike.train.watch.layers import LayerWatch
from tests.kernels.built import ALWAYS, MISSING, needs_kernel
from tests.models.members import TINY, clip, member
from tests.together import in_two_processes

NETWORKS = [name for name in TINY if "former" in name or name.split("_")[0] in ("sdt", "cnn7", "ms")]


def batch(name: str, rank: int | None, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Frames [T, 4, ...] and classes, or the half of them that belongs to a rank."""
    x, y = clip(name, 2, 4).to(dtype), torch.arange(4)
    share = slice(None) if rank is None else slice(2 * rank, 2 * rank + 2)
    return x[:, share].contiguous(), y[share]


def trained(name: str, rank: int | None, steps: int, dtype: torch.dtype, *, watched: bool = False) -> dict[str, Tensor]:
    """Parameters, buffers and the last gradients after ``steps`` steps; watched: as by `steadyspike train`."""
    model = member(name, timesteps=2).to(dtype)
    watch = LayerWatch(model, 2) if watched else None
    # As the trainer does: norms and MP-Init synchronise themselves.
    net: nn.Module = model if rank is None else DistributedDataParallel(model, broadcast_buffers=False)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    for _ in range(steps):
        optimizer.zero_grad()
        x, y = batch(name, rank, dtype)
        nn.functional.cross_entropy(net(x).mean(0), y).backward()
        optimizer.step()
    if watch is not None:
        watch.close()
    actual = {f"state {k}": v for k, v in model.state_dict().items()}
    return actual | {f"gradient {k}": p.grad for k, p in model.named_parameters() if p.grad is not None}


def by_events(name: str, rank: int | None) -> tuple[dict[str, Tensor], int]:
    """One float32 step in which every layer that can runs by events, and how many ran so."""
    ran: list[int] = []
    run, costs = function._run, function.COSTS
    function._run = lambda *args: ran.append(1) or run(*args)  # type: ignore[assignment,func-returns-value]
    function.COSTS = dict.fromkeys(costs, ALWAYS)  # type: ignore[assignment]
    try:
        return trained(name, rank, 1, torch.float32), len(ran)
    finally:
        function._run, function.COSTS = run, costs


def results(name: str, rank: int | None) -> dict[str, Any]:
    actual: dict[str, Any] = {"float64": trained(name, rank, 3, torch.float64)}
    actual["watched"] = trained(name, rank, 3, torch.float64, watched=True)
    if MISSING is None:
        actual["events"], actual["ran"] = by_events(name, rank)
    return actual


def all_results(rank: int) -> dict[str, dict[str, Any]]:
    return {name: results(name, rank) for name in NETWORKS}


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return in_two_processes(all_results, tmp_path_factory.mktemp("gloo"))


@pytest.mark.parametrize("name", NETWORKS)
def test_three_steps_of_two_processes_equal_those_of_one(two_processes: list[dict[str, Any]], name: str) -> None:
    want = trained(name, None, 3, torch.float64)
    for got in two_processes:
        assert got[name]["float64"].keys() == want.keys()
        for key, value in want.items():
            torch.testing.assert_close(got[name]["float64"][key], value, rtol=1e-7, atol=1e-9, msg=key)


@pytest.mark.parametrize("name", NETWORKS)
def test_watching_changes_no_number(two_processes: list[dict[str, Any]], name: str) -> None:
    for got in two_processes:
        for key, value in got[name]["float64"].items():
            assert torch.equal(got[name]["watched"][key], value), key


@needs_kernel
@pytest.mark.parametrize("name", NETWORKS)
def test_a_step_by_events_of_two_processes_equals_that_of_one(two_processes: list[dict[str, Any]], name: str) -> None:
    want, ran = by_events(name, None)
    assert ran > 0
    for got in two_processes:
        assert got[name]["ran"] > 0
        for key, value in want.items():
            if key.startswith("gradient"):
                atol = 1e-3 * value.abs().max().item() + 1e-6
                torch.testing.assert_close(got[name]["events"][key], value, rtol=1e-3, atol=atol, msg=key)
