"""The state of every random generator a run draws from, as plain values that load with ``weights_only=True``."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch


def rng_state() -> dict[str, Any]:
    """Python's, NumPy's and torch's generators, and those of all CUDA devices."""
    # NumPy's old global generator, because code that people add may draw from it.
    name, keys, position, has_gauss, gauss = np.random.get_state(legacy=True)  # noqa: NPY002
    version, internal, following = random.getstate()
    return {
        "python": [version, list(internal), following],
        "numpy": [str(name), torch.from_numpy(np.array(keys, np.int64)), int(position), int(has_gauss), float(gauss)],
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
    }


def set_rng_state(state: dict[str, Any]) -> None:
    """Back to a state of `rng_state`."""
    version, internal, following = state["python"]
    random.setstate((version, tuple(internal), following))
    name, keys, position, has_gauss, gauss = state["numpy"]
    np.random.set_state((name, keys.numpy().astype(np.uint32), position, has_gauss, gauss))  # noqa: NPY002
    torch.set_rng_state(state["torch"])
    if state["cuda"] and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(state["cuda"])


def seed_all(seed: int, rank: int = 0) -> None:
    """Seeds every generator; ranks draw different dropout masks."""
    mixed = (seed * 1_000_003 + rank) % 2**32
    random.seed(mixed)
    np.random.seed(mixed)  # noqa: NPY002
    torch.manual_seed(mixed)
