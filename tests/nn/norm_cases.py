"""Layers and inputs for the tests of ``neuron(norm(y) + extra)``; ``extra`` may itself be the output of a norm."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

import steadyspike as ss
from steadyspike.nn.fused_norm import Normed, norm_neuron
from steadyspike.nn.norm.tdbn import TDBN

EXTRAS = ("none", "spikes", "norm")


def layers(extra: str, dtype: torch.dtype = torch.float32, scaling: str = "none", **options: object) -> nn.ModuleList:
    """Norm, neuron, and the shortcut's norm if ``extra`` has one, which has another eps and scaling."""
    torch.manual_seed(0)
    parts = nn.ModuleList([TDBN(6, scaling, 0.7, 0.5), ss.LIF(0.6, 1.6, **options)])  # type: ignore[arg-type]
    parts += [TDBN(6, eps=1e-2)] if extra == "norm" else []
    with torch.no_grad():
        for norm in (parts[0], *parts[2:]):
            norm.weight.uniform_(0.5, 1.5)
            norm.bias.uniform_(-0.2, 0.4)
        parts[1].init.running_mean.fill_(0.1)
    return parts.to(dtype)


def inputs(extra: str, dtype: torch.dtype = torch.float32, layout: str = "contiguous", size: int = 8) -> list[Tensor]:
    """[y], or [y, extra]: spikes, or the input of the shortcut's norm."""
    tensors = [torch.randn(5, 3, 6, 7, size, dtype=torch.float64) * 2 + 3]
    if extra == "spikes":
        tensors.append((torch.rand(tensors[0].shape) < 0.2).double())
    if extra == "norm":
        tensors.append(torch.randn(tensors[0].shape, dtype=torch.float64) + 1)
    if layout == "channels_last":
        tensors = [t.flatten(0, 1).to(memory_format=torch.channels_last).unflatten(0, (5, 3)) for t in tensors]
    return [t.to(dtype) for t in tensors]


def in_one(
    norm: nn.Module, neuron: nn.Module, second: nn.Module | None, y: Tensor, extra: Tensor | None = None
) -> Tensor:
    return norm_neuron(norm, neuron, y, extra if second is None or extra is None else Normed(second, extra))  # type: ignore[arg-type]


def one_by_one(
    norm: nn.Module, neuron: nn.Module, second: nn.Module | None, y: Tensor, extra: Tensor | None = None
) -> Tensor:
    x = norm(y)
    return neuron(x if extra is None else x + (extra if second is None else second(extra)))


def run(call: Callable[..., Tensor], parts: nn.ModuleList, tensors: list[Tensor]) -> Tensor:
    norm, neuron, second = [*parts, None][:3]
    return call(norm, neuron, second, *tensors)


def step(call: Callable[..., Tensor], parts: nn.ModuleList, tensors: list[Tensor]) -> dict[str, Tensor]:
    """Output, gradients of the inputs and parameters, and buffers after one step."""
    leaves = [t.detach().clone(memory_format=torch.preserve_format).requires_grad_() for t in tensors]
    out = run(call, parts, leaves)
    g = torch.randn(out.shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64).to(out.dtype)
    out.backward(g)
    named = {"out": out.detach()} | {f"input {i}": leaf.grad for i, leaf in enumerate(leaves)}
    named |= {name: p.grad for name, p in parts.named_parameters()}
    return named | dict(parts.named_buffers())  # type: ignore[return-value]


def assert_close(got: dict[str, Tensor], want: dict[str, Tensor], rtol: float, atol: float) -> None:
    assert got.keys() == want.keys()
    for name, value in want.items():
        torch.testing.assert_close(got[name], value, rtol=rtol, atol=atol, msg=lambda m, n=name: f"{n}: {m}")


def assert_same_statistics(got: dict[str, Tensor], want: dict[str, Tensor]) -> None:
    """Of the norms, and MP-Init's mean, bit for bit."""
    for name, value in want.items():
        assert not ("running" in name or "tracked" in name) or torch.equal(got[name], value), name
