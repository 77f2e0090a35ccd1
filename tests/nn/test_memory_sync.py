"""Two gloo processes with half a batch each and `save_memory` equal one plain process: gradients and statistics."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn

import steadyspike as ss
from steadyspike.nn.norm.tdbn import TDBN
from steadyspike.nn.time import Folded


def net() -> nn.Module:
    torch.manual_seed(0)
    layers = [[Folded(nn.Conv2d(8, 8, 3, padding=1)), TDBN(8), ss.LIF(surrogate="sigmoid")] for _ in range(2)]
    return nn.Sequential(*layers[0], *layers[1]).double()


def step(model: nn.Module, x: Tensor) -> dict[str, Tensor]:
    model(x).square().sum().backward()
    return {**{k: p.grad for k, p in model.named_parameters()}, **{k: b.clone() for k, b in model.named_buffers()}}


def batch() -> Tensor:
    return torch.randn(4, 6, 8, 8, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def worker(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    result = step(ss.save_memory(net()), batch()[:, 3 * rank : 3 * rank + 3].contiguous())
    for name, _ in net().named_parameters():
        dist.all_reduce(result[name])
    torch.save(result, Path(folder) / f"{rank}.pt")
    dist.destroy_process_group()


@pytest.mark.slow
def test_two_processes_equal_one(tmp_path: Path) -> None:
    mp.spawn(worker, args=(str(tmp_path),), nprocs=2)
    want = step(copy.deepcopy(net()), batch())
    for rank in range(2):
        got = torch.load(tmp_path / f"{rank}.pt", weights_only=True)
        assert got.keys() == want.keys()
        for name in want:
            torch.testing.assert_close(got[name], want[name], rtol=1e-9, atol=1e-9, msg=name)
