"""Runs networks on a GPU that is not available: tensors have a device, a type and a size, but no values.

This needs a build of torch for CUDA, but no card. It detects tensors on the wrong device, and every operation that
reads a value.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from steadyspike.analysis.gpu.host_waits import HostWaits
from steadyspike.core.torch_private import FakeTensorMode
from steadyspike.models.model_registry import create, entry


def why_not_here() -> str | None:
    """Returns None if this torch supports the device "cuda", otherwise the reason."""
    if torch.version.cuda is None and torch.version.hip is None:
        return f"torch {torch.__version__} is built for the CPU only; install the CUDA build (a card is not needed)"
    return None


def check_network(name: str, *, mixed: bool, device: str = "cuda") -> list[str]:
    """What is wrong with a training step and an evaluation of a registered network on ``device``; [] if nothing is.

    mixed: under autocast in bfloat16
    """
    about, waits, problems = entry(name), HostWaits(), []
    with torch.device("meta"):  # initial weights read values, which is not part of a step
        model = create(name, timesteps=2)
    with FakeTensorMode(allow_non_fake_inputs=True), torch.device(device):
        model.to_empty(device=device)
        x = torch.empty(2, 2, about.in_channels, *about.image_size)
        with waits, _autocast(device, mixed):
            out = model(x)
            if about.task == "classification":
                loss: Tensor = nn.functional.cross_entropy(out.mean(0), torch.zeros(2, dtype=torch.long))
            else:
                loss = _sum(out)
        with waits:
            by_parameter = gradients(loss, list(model.parameters()))
        with torch.no_grad(), waits, _autocast(device, mixed):
            evaluated = model.eval()(x)
        tensors = {"output": _sum(out), "evaluation": _sum(evaluated)}
        tensors |= {f"gradient of {n}": g for (n, _), g in zip(model.named_parameters(), by_parameter) if g is not None}
        tensors |= dict(model.named_buffers())
        problems += [f"{key} is on {t.device}" for key, t in tensors.items() if t.device.type != device]
        if not any(g is not None for g in by_parameter):
            problems.append("no parameter has a gradient")
    return problems + [f"the host waits: {operation}" for operation in waits.seen]


@contextmanager
def _autocast(device: str, enabled: bool) -> Iterator[None]:
    """``torch.autocast`` in bfloat16, which would turn itself off if there is no card."""
    before = torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)
    torch.set_autocast_enabled(device, enabled)
    torch.set_autocast_dtype(device, torch.bfloat16)
    try:
        yield
    finally:
        torch.clear_autocast_cache()
        torch.set_autocast_enabled(device, before[0])
        torch.set_autocast_dtype(device, before[1])


def _sum(out: Any) -> Tensor:
    """Returns the sum of all tensors of an output."""
    if isinstance(out, Tensor):
        return out.float().sum()
    parts = out.values() if isinstance(out, dict) else out
    return torch.stack([_sum(part) for part in parts]).sum()


def gradients(loss: Tensor, parameters: list[nn.Parameter]) -> list[Tensor | None]:
    """Does what `torch.autograd.grad` does, node by node in Python.

    Torch's engine would ask the driver for a stream, and there is no driver.
    """
    assert loss.grad_fn is not None
    order: list[Any] = []
    _sorted(loss.grad_fn, set(), order)
    given: dict[Any, list[Tensor | None]] = defaultdict(list)
    given[loss.grad_fn] = [torch.ones_like(loss)]
    result: dict[int, Tensor] = {}
    for node in reversed(order):
        arrived = given.pop(node, None)
        if arrived is None:
            continue
        if hasattr(node, "variable"):  # the end of the graph: a parameter
            assert arrived[0] is not None
            result[id(node.variable)] = arrived[0]
            continue
        arrived += [None] * (len(node._input_metadata) - len(arrived))
        for (target, index), gradient in _passed_on(node, arrived):
            if gradient is None:
                continue
            slots = given[target]
            slots.extend([None] * (index + 1 - len(slots)))
            like = target._input_metadata[index]
            # sum to the shape, as the engine does for a broadcast
            gradient = gradient.sum_to_size(like.shape).to(like.dtype)
            before = slots[index]
            slots[index] = gradient if before is None else before + gradient
    return [result.get(id(p)) for p in parameters]


def _passed_on(node: Any, arrived: list[Tensor | None]) -> Iterator[tuple[tuple[Any, int], Tensor | None]]:
    """Runs a node; yields the (node, number of its output) that each of its gradients belongs to, with the gradient."""
    # nodes of torch itself, and nodes written in Python
    left = node(*arrived) if callable(node) else node.apply(*arrived)
    left = left if isinstance(left, tuple) else (left,)
    targets = node.next_functions
    if hasattr(node, "needs_input_grad"):  # Python: a gradient for every argument, also for numbers
        left = [gradient for gradient, needed in zip(left, node.needs_input_grad) if needed]
        targets = [target for target in targets if target[0] is not None]
        assert len(left) == len(targets)
    return ((target, gradient) for target, gradient in zip(targets, left) if target[0] is not None)


def _sorted(root: Any, seen: set[Any], order: list[Any]) -> None:
    """Returns all nodes below ``root``, each after the nodes that lead to it."""
    stack = [(root, False)]
    while stack:
        node, done = stack.pop()
        if done:
            order.append(node)
        elif node not in seen:
            seen.add(node)
            stack.append((node, True))
            stack += [(target, False) for target, _ in node.next_functions if target is not None]
