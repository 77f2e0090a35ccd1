"""Fixtures for kernel tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor


def _poisoned(allocate: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def call(*args: object, **kwargs: object) -> Tensor:
        tensor = allocate(*args, **kwargs)
        return tensor.fill_(float("nan")) if tensor.is_floating_point() and not tensor.requires_grad else tensor

    return call


@pytest.fixture
def poisoned_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """While active, freshly allocated tensors hold NaN: an element that a kernel forgets to write is found out."""
    for name in ("empty", "empty_like", "empty_strided"):
        monkeypatch.setattr(torch, name, _poisoned(getattr(torch, name)))
    for name in ("new_empty", "new_empty_strided"):
        monkeypatch.setattr(Tensor, name, _poisoned(getattr(Tensor, name)))
    assert torch.empty(3).isnan().all()


@pytest.fixture
def restored_threads() -> Iterator[None]:
    """Puts torch's number of threads back after a test that changes it."""
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.fixture(params=[1, 2], ids=["1 thread", "2 threads"])
def threads(request: pytest.FixtureRequest, restored_threads: None) -> int:
    """Runs a test with one and with two of torch's threads."""
    count: int = request.param
    torch.set_num_threads(count)
    return count
