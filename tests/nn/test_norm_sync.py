"""Two gloo processes with half a batch each equal one process with the whole batch: outputs, statistics, gradients."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from steadyspike.nn.norm import NORMS
from tests.nn.test_norm import C, T, current, norm_with_values
from tests.together import in_two_processes

NAMES = [name for name in NORMS if name != "none"]
# Unequal shares: the counts must be summed too, not assumed.
SHARES = [slice(0, 2), slice(2, 6)]


def example() -> tuple[Tensor, Tensor]:
    x = current((T, 6, C, 3, 3), torch.float32)
    return x, torch.randn(x.shape, generator=torch.Generator().manual_seed(5))


def run(norm: nn.Module, x: Tensor, weights: Tensor) -> dict[str, Tensor]:
    """Two training forwards, the gradient of the second; the loss is a sum, so gradients of shares add up."""
    x = x.clone().requires_grad_()
    norm(x.detach())
    y = norm(x)
    (y * weights).sum().backward()
    result = {"out": y.detach(), "x": x.grad}
    result.update({f"grad {k}": p.grad for k, p in norm.named_parameters()})
    result.update({f"buffer {k}": b.clone() for k, b in norm.named_buffers()})
    return result


def results(rank: int) -> dict[str, dict[str, Tensor]]:
    x, weights = example()
    share = SHARES[rank]
    actual = {}
    for name in NAMES:
        result = run(norm_with_values(name, torch.float32), x[:, share].contiguous(), weights[:, share])
        for key in result:
            if key.startswith("grad"):
                dist.all_reduce(result[key])
        actual[name] = result
    alone = norm_with_values("tdbn", torch.float32)
    alone.sync = False
    return actual | {"alone": run(alone, x[:, share].contiguous(), weights[:, share])}


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, dict[str, Tensor]]]:
    return in_two_processes(results, tmp_path_factory.mktemp("gloo"))


@pytest.mark.parametrize("name", NAMES)
def test_two_processes_equal_one(name: str, two_processes: list[dict[str, dict[str, Tensor]]]) -> None:
    expected = run(norm_with_values(name, torch.float32), *example())
    ranks = [r[name] for r in two_processes]
    for key, value in expected.items():
        if key in ("out", "x"):
            got = torch.cat([r[key] for r in ranks], dim=1)
        else:
            got = ranks[0][key]
            assert torch.equal(got, ranks[1][key]), key
        error = float((got - value).abs().max() / (1 + value.abs().max()))
        assert error < 1e-6, (key, error)


def test_sync_can_be_turned_off(two_processes: list[dict[str, dict[str, Tensor]]]) -> None:
    x, weights = example()
    norm = norm_with_values("tdbn", torch.float32)
    expected = run(norm, x[:, SHARES[1]].contiguous(), weights[:, SHARES[1]])
    assert torch.equal(two_processes[1]["alone"]["out"], expected["out"])
    whole = run(norm_with_values("tdbn", torch.float32), x, weights)["out"][:, SHARES[1]]
    assert not torch.allclose(expected["out"], whole, atol=1e-3)
