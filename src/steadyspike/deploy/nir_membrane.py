"""The membrane of a NIR neuron as one Euler step: constants of the layer's shape in float64, checked."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from steadyspike.deploy.errors import CannotFold
from steadyspike.deploy.nir_values import spread


class Membrane(NamedTuple):
    """v <- v + leak (rest - v) + gain I, and v = reset after a spike.

    leak: dt / tau, 0 for an integrator
    gain: r dt / tau, or r dt for an integrator
    """

    leak: np.ndarray
    gain: np.ndarray
    rest: np.ndarray
    reset: np.ndarray


def membrane_of(node: Any, shape: tuple[int, ...], dt: float, name: str) -> Membrane:
    """Returns the membrane of a LIF, IF, CubaLIF, LI, I or CubaLI node."""
    tau = getattr(node, "tau", getattr(node, "tau_mem", None))
    leak = np.zeros(shape) if tau is None else _leak(tau, shape, dt, name)
    r = _finite(node.r, shape, "r", name)
    rest = _finite(getattr(node, "v_leak", 0.0), shape, "v_leak", name)
    given = getattr(node, "v_reset", None)
    reset = _finite(0.0 if given is None else given, shape, "v_reset", name)
    return Membrane(leak, r * (dt if tau is None else leak), rest, reset)


def synapse_of(node: Any, shape: tuple[int, ...], dt: float, name: str) -> Membrane:
    """Returns the synaptic current of a CubaLIF or CubaLI node."""
    leak, zero = _leak(node.tau_syn, shape, dt, name), np.zeros(shape)
    return Membrane(leak, _finite(node.w_in, shape, "w_in", name) * leak, zero, zero)


def neuron_shape(node: Any, name: str) -> tuple[int, ...]:
    """Returns the shape of a neuron layer, from its constants.

    Nodes that read its earlier values need the shape before the layer is processed.
    """
    for what in ("v_threshold", "threshold", "tau", "tau_mem", "r"):
        if hasattr(node, what):
            shape = np.asarray(getattr(node, what)).shape
            if shape and all(shape):
                return shape
    raise CannotFold(f"{name}: its constants do not have the shape of the layer, which a recurrent layer needs")


def _leak(tau: Any, shape: tuple[int, ...], dt: float, name: str) -> np.ndarray:
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        leak = dt / spread(tau, shape, name)
    if not (np.isfinite(leak).all() and (leak > 0).all() and (leak <= 1).all()):
        raise CannotFold(f"{name}: tau must be at least one time step ({dt:g} s) and finite")
    return leak


def _finite(values: Any, shape: tuple[int, ...], what: str, name: str) -> np.ndarray:
    full = spread(values, shape, name)
    if not np.isfinite(full).all():
        raise CannotFold(f"{name}: {what} is not finite")
    return full
