"""Seeds that depend only on (run seed, epoch, ...): any batch of any epoch can be made without earlier ones."""

from __future__ import annotations

import contextlib
import hashlib
import random
from collections.abc import Iterator

import numpy as np
import torch


def mix(*parts: int) -> int:
    """Returns a 63-bit seed from whole numbers; every argument changes the result."""
    text = ",".join(str(int(part)) for part in parts).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big") >> 1


def generator(*parts: int) -> torch.Generator:
    """Returns a CPU generator seeded by `mix(*parts)`."""
    return torch.Generator().manual_seed(mix(*parts))


@contextlib.contextmanager
def seeded_globals(seed: int) -> Iterator[None]:
    """Seeds the global generators (torch, numpy, random) inside the block only, for a user's own random transforms."""
    state = torch.get_rng_state(), np.random.get_state(), random.getstate()  # noqa: NPY002
    torch.default_generator.manual_seed(seed)
    np.random.seed(seed % (1 << 32))  # noqa: NPY002
    random.seed(seed)
    try:
        yield
    finally:
        torch.set_rng_state(state[0])
        np.random.set_state(state[1])  # noqa: NPY002
        random.setstate(state[2])
