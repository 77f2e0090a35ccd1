"""Events, `save_memory`, activation checkpointing and channels_last in two gloo processes of half a batch each:
outputs, statistics and all gradients are those of the dense network with the whole batch in one process.

Convolutions are forced to run by events, whatever that costs; a V and a tau are learned for every channel.
"""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import steadyspike as ss
from steadyspike.kernels.conv import function
from steadyspike.models import SpikingNet
from steadyspike.nn.factory import Site
from steadyspike.train.build.build_network import recompute_blocks
from tests.kernels.built import ALWAYS, needs_kernel
from tests.models.members import clip, member
from tests.together import in_two_processes

pytestmark = needs_kernel
# A norm on the shortcut; a sum of spikes; a sum of membranes' currents; attention.
NETWORKS = ("resnet19_tiny", "sew_resnet34_tiny", "ms_resnet_tiny", "spikformer_tiny")
WAYS = ("events", "save_memory", "checkpointing", "save_memory and checkpointing")
FORMATS = ("contiguous", "channels_last")
CASES = list(product(NETWORKS, WAYS, FORMATS))


class PerChannel:
    """Builds neurons with constants for every channel of their place."""

    def __init__(self, threshold: float = 1.0) -> None:
        self.threshold = threshold

    def with_threshold(self, threshold: float) -> PerChannel:
        return PerChannel(threshold)

    def at(self, site: Site) -> nn.Module:
        return ss.LIF(channels=site.channels, threshold=self.threshold)


def network(name: str) -> SpikingNet:
    # Norms that start at a scale of 0 would leave the layers before them without a gradient.
    options = {"zero_residual": False} if name == "ms_resnet_tiny" else {}
    return member(name, timesteps=2, neuron=PerChannel(), image_size=16, **options)


def frames(name: str, rank: int | None, layout: str) -> tuple[Tensor, Tensor]:
    """[2, 4, C, 16, 16] and classes, or the half of them that belongs to a rank."""
    share = slice(None) if rank is None else slice(2 * rank, 2 * rank + 2)
    x = clip(name, 2, 4)[:, share, :, :16, :16].contiguous()
    if layout == "channels_last":
        x = x.flatten(0, 1).contiguous(memory_format=torch.channels_last).unflatten(0, x.shape[:2])
    return x, torch.arange(4)[share]


def step(net: nn.Module, model: nn.Module, x: Tensor, y: Tensor) -> dict[str, Tensor]:
    """Output, statistics and gradients of a training step."""
    out = net(x)
    nn.functional.cross_entropy(out.mean(0), y).backward()
    actual = {"output": out.detach()} | {f"buffer {k}": v for k, v in model.named_buffers()}
    return actual | {f"gradient {k}": p.grad for k, p in model.named_parameters() if p.grad is not None}


def by_events(name: str, way: str, layout: str, rank: int) -> dict[str, Tensor]:
    """A rank's step; "ran": how many layers ran by events, "dense": how many should have and did not."""
    ran: list[bool] = []
    forward, costs = function._forward, function.COSTS

    def counted(x: Tensor, weight: Tensor, bias: Tensor | None, plan: Any, packed: Tensor | None) -> Tensor:
        ran.append(packed is not None and plan.weight_gradient)
        return forward(x, weight, bias, plan, packed)

    function._forward = counted
    function.COSTS = dict.fromkeys(costs, ALWAYS)  # type: ignore[assignment]
    try:
        model = network(name)
        if layout == "channels_last":
            model = model.to(memory_format=torch.channels_last)
        if "save_memory" in way:
            ss.save_memory(model)
        if "checkpointing" in way:
            assert recompute_blocks(model) > 0
        net = DistributedDataParallel(model, broadcast_buffers=False)
        actual = step(net, model, *frames(name, rank, layout))
    finally:
        function._forward, function.COSTS = forward, costs
    return actual | {"ran": torch.tensor(sum(ran)), "dense": torch.tensor(len(ran) - sum(ran))}


def all_steps(rank: int) -> dict[Any, dict[str, Tensor]]:
    return {case: by_events(*case, rank) for case in CASES}


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory: pytest.TempPathFactory) -> list[dict[Any, dict[str, Tensor]]]:
    return in_two_processes(all_steps, tmp_path_factory.mktemp("gloo"))


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(case))
def test_two_processes_equal_the_dense_network(
    two_processes: list[dict[Any, dict[str, Tensor]]], case: tuple[str, str, str]
) -> None:
    name = case[0]
    model = ss.use_dense(network(name))
    want = step(model, model, *frames(name, None, "contiguous"))
    assert want["output"].any() and all(value.any() for key, value in want.items() if key.endswith(".k"))
    for rank, actual in enumerate(two_processes):
        got = dict(actual[case])
        assert got.pop("ran") > 0 and got.pop("dense") == 0
        assert got.keys() == want.keys()
        for key, value in want.items():
            value = value[:, 2 * rank : 2 * rank + 2] if key == "output" else value
            atol = 1e-3 * float(value.abs().max()) + 1e-6
            torch.testing.assert_close(
                got[key], value, rtol=1e-3, atol=atol, msg=lambda text, key=key: f"{key}: {text}"
            )
