"""Converted and stabilised models under DDP and FSDP2: two gloo processes with half a batch each equal one process."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

import steadyspike as ss
from tests.together import in_two_processes

pytest.importorskip("spikingjelly.activation_based", reason="SpikingJelly is not installed")
from spikingjelly.activation_based import neuron

pytestmark = [
    pytest.mark.peer,
    pytest.mark.filterwarnings("ignore"),  # torch's own, about sharding on the CPU
]
T, B, STEPS = 4, 6, 3
CHANGES = {"convert": ss.convert, "stabilize": ss.stabilize}
WRAPPERS = ("ddp", "fsdp2")


def network() -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Linear(5, 16), neuron.LIFNode(v_threshold=0.3, step_mode="m"), nn.Linear(16, 3)]
    return nn.Sequential(*layers, neuron.LIFNode(v_threshold=0.2, v_reset=None, step_mode="m")).double()


def batch(rank: int | None) -> tuple[Tensor, Tensor]:
    x = torch.rand(T, B, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64) * 2
    share = slice(None) if rank is None else slice(3 * rank, 3 * rank + 3)
    return x[:, share].contiguous(), (torch.arange(B) % 3)[share]


def whole(value: Tensor) -> Tensor:
    return value.full_tensor() if isinstance(value, DTensor) else value


def trained(change: str, wrapper: str, rank: int | None) -> dict[str, Tensor]:
    """Parameters and buffers after a few optimizer steps."""
    model = CHANGES[change](network(), report=None)
    net: nn.Module = model
    if rank is not None and wrapper == "ddp":
        net = nn.parallel.DistributedDataParallel(model, broadcast_buffers=False)
    if rank is not None and wrapper == "fsdp2":
        fully_shard(net, mesh=init_device_mesh("cpu", (2,)))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
    for _ in range(STEPS):
        optimizer.zero_grad()
        x, y = batch(rank)
        nn.functional.cross_entropy(net(x).mean(0), y).backward()
        optimizer.step()
    return {name: whole(value).clone() for name, value in model.state_dict().items()}


def results(rank: int) -> dict[Any, dict[str, Tensor]]:
    return {(change, wrapper): trained(change, wrapper, rank) for change in CHANGES for wrapper in WRAPPERS}


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory: pytest.TempPathFactory) -> list[dict[Any, dict[str, Tensor]]]:
    return in_two_processes(results, tmp_path_factory.mktemp("gloo"))


@pytest.mark.parametrize("wrapper", WRAPPERS)
@pytest.mark.parametrize("change", CHANGES)
def test_two_processes_equal_one(change: str, wrapper: str, two_processes: list[dict[Any, dict[str, Tensor]]]) -> None:
    alone = trained(change, wrapper, None)
    start = CHANGES[change](network(), report=None).state_dict()
    assert any(not torch.equal(start[name], value) for name, value in alone.items() if name.startswith("0."))
    for actual in two_processes:
        together = actual[change, wrapper]
        assert together.keys() == alone.keys()
        for name, value in alone.items():
            torch.testing.assert_close(together[name], value, rtol=1e-10, atol=1e-12, msg=lambda m, n=name: f"{n}: {m}")
