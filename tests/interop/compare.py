"""Runs an original and its converted copy on the same random data, and compares outputs and every gradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

Run = Callable[[nn.Module, Tensor], Any]


def tensors(output: Any) -> list[Tensor]:
    """All tensors of a nested output."""
    if isinstance(output, Tensor):
        return [output]
    if isinstance(output, (tuple, list)):
        return [t for part in output for t in tensors(part)]
    return []


def observed(run: Run, model: nn.Module, x: Tensor) -> tuple[list[Tensor], list[Tensor | None]]:
    """Outputs, and the gradients of a weighted sum of them to the input and to all parameters."""
    x = x.clone().requires_grad_()
    model.zero_grad(set_to_none=True)
    outputs = tensors(run(model, x))
    g = torch.Generator().manual_seed(5)
    loss = sum((o * torch.randn(o.shape, generator=g, dtype=torch.float64)).sum() for o in outputs if o.requires_grad)
    loss.backward()  # type: ignore[union-attr]
    return [o.detach().clone() for o in outputs], [x.grad, *(p.grad for p in model.parameters())]


def assert_equal(run: Run, original: nn.Module, converted: nn.Module, x: Tensor, tolerance: float = 1e-10) -> None:
    """The same outputs and gradients, with spikes among the outputs and a gradient that is not zero."""
    expected, actual = observed(run, original, x), observed(run, converted, x)
    assert len(expected[0]) == len(actual[0])
    assert any(0 < float((o != 0).double().mean()) < 1 for o in expected[0]), "this input shows nothing"
    assert bool(expected[1][0].any())  # type: ignore[union-attr]
    for theirs, ours in zip((*expected[0], *expected[1]), (*actual[0], *actual[1]), strict=True):
        assert (theirs is None) == (ours is None)
        if theirs is not None:
            torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance, check_dtype=False)


def current(*shape: int, seed: int = 0) -> Tensor:
    """A random input that makes neurons with V = 1 fire now and then."""
    return 1.5 * torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) + 0.6
