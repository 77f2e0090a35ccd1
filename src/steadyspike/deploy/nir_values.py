"""Checked numbers of a NIR graph: each function returns what its name states, or raises an error with the node."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from steadyspike.deploy.errors import CannotFold
from steadyspike.deploy.schema import MOST_SIDE, MOST_STEPS, MOST_VALUES
from steadyspike.deploy.to_nir import DT


def neuron_constant(values: np.ndarray, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """A neuron constant: [1] if it is the same everywhere, [C] if it is per channel, otherwise [1, ...] per neuron."""
    full = torch.as_tensor(np.broadcast_to(np.asarray(values, dtype=np.float64), shape).copy()).to(dtype)
    if bool((full == full.flatten()[0]).all()):
        return full.flatten()[:1].clone()
    per_channel = full.flatten(1)[:, 0] if full.ndim > 1 else full
    spread = per_channel.view(-1, *([1] * (len(shape) - 1))).expand(shape)
    return per_channel.clone() if torch.equal(spread, full) else full[None]


def weights_dtype(source: Any) -> torch.dtype:
    """Returns float64 if a synapse of the graph has float64 weights, otherwise float32."""
    weights = [np.asarray(node.weight) for node in source.nodes.values() if hasattr(node, "weight")]
    return torch.float64 if any(w.dtype == np.float64 for w in weights) else torch.float32


def spread(values: Any, shape: tuple[int, ...], name: str) -> np.ndarray:
    """Returns a constant of a node as float64 of the node's shape."""
    try:
        return np.broadcast_to(np.asarray(values, dtype=np.float64), shape)
    except (ValueError, TypeError):
        raise CannotFold(f"{name}: its constants do not match an input of shape {list(shape)}") from None


def whole_number(value: Any, name: str, least: int = 1) -> int:
    values = np.asarray(value)
    if values.size != 1 or values.dtype.kind not in "iu" or not least <= int(values.reshape(())) <= MOST_SIDE:
        raise CannotFold(f"{name}: {str(value)[:40]!r} is not a whole number of at least {least}")
    return int(values.reshape(()))


def one_per_axis(value: Any, axes: int, name: str, least: int = 1) -> list[int]:
    values = np.asarray(value)
    if values.size not in (1, axes):
        raise CannotFold(f"{name}: {str(value)[:40]!r} is not a number for each of {axes} axes")
    numbers = [whole_number(v, name, least) for v in values.reshape(-1)]
    return numbers * (axes // len(numbers))


def padding_of(value: Any, kernel: Sequence[int], options: dict[str, Any], name: str) -> list[int]:
    """Returns numbers, or "valid" and, if both sides get the same, "same"."""
    text = value.decode(errors="replace") if isinstance(value, bytes) else value
    if not isinstance(text, str):
        return one_per_axis(value, len(kernel), name, least=0)
    sides = [d * (k - 1) for k, d in zip(kernel, options["dilation"])]
    if text == "valid":
        return [0] * len(kernel)
    if text != "same" or any(n % 2 for n in sides) or any(s != 1 for s in options["stride"]):
        raise CannotFold(f"{name}: a convolution's padding must be numbers, got {text[:20]!r}")
    return [n // 2 for n in sides]


def input_shape(value: Any, name: str) -> tuple[int, ...]:
    sizes = np.asarray(value)
    whole = sizes.ndim == 1 and sizes.dtype.kind in "iu" and 0 < len(sizes) <= 8 and bool((sizes > 0).all())
    if not whole or math.prod(int(n) for n in sizes) > MOST_VALUES:
        raise CannotFold(f"{name}: {str(value)[:40]!r} is not the shape of an input")
    return tuple(int(n) for n in sizes)


def timesteps_of(metadata: Any) -> int:
    steps = np.asarray(metadata.get("timesteps", 1))
    if steps.size != 1 or steps.dtype.kind not in "iu" or not 1 <= int(steps.reshape(())) <= MOST_STEPS:
        raise CannotFold(f"the NIR graph's timesteps is not a whole number from 1 to {MOST_STEPS}")
    return int(steps.reshape(()))


def delay_steps(delay: Any, dt: float, name: str) -> int:
    """Returns a delay in time steps: a whole number, and one for all neurons."""
    steps = np.asarray(delay, dtype=np.float64) / dt
    first = float(steps.flat[0]) if steps.size else math.nan
    if not (steps.size and np.isfinite(steps).all() and bool((steps == first).all())):
        raise CannotFold(f"{name}: the delays of a layer must all be the same number")
    if abs(first - round(first)) > 1e-6 or not 0 <= round(first) <= MOST_STEPS:
        raise CannotFold(f"{name}: a delay of {first:g} time steps is not a whole number from 0 to {MOST_STEPS}")
    return round(first)


def _default_step(source: Any) -> float:
    """Returns 1 for a graph without time constants whose gains r are 1.

    Its unit of time is a step, as in IF nodes of sinabs.
    """
    todo, in_steps = [source], True
    while todo:
        for node in todo.pop().nodes.values():
            timed = any(hasattr(node, what) for what in ("tau", "tau_mem", "delay"))
            in_steps = in_steps and not timed and bool(np.all(np.asarray(getattr(node, "r", 1.0)) == 1.0))
            todo += [node] if hasattr(node, "nodes") else []
    return 1.0 if in_steps else DT


def seconds_per_step(source: Any, dt: float | None) -> float:
    """Returns the seconds per time step: the given ones, otherwise those of the graph, otherwise `_default_step`."""
    given = source.metadata.get("dt") if dt is None else dt
    try:
        step = _default_step(source) if given is None else float(np.asarray(given).reshape(()))
    except (TypeError, ValueError):
        step = math.nan
    if not (math.isfinite(step) and step > 0):
        raise CannotFold(f"dt must be a number of seconds above 0, got {step}")
    return step
