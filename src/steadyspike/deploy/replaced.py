"""Replaces an attribute of one module instance temporarily."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn


@contextmanager
def replaced(module: nn.Module, name: str, value: Any) -> Iterator[None]:
    """Sets ``module.name`` to ``value`` inside the block; afterwards it is restored, also if it came from the class."""
    had, before = name in module.__dict__, module.__dict__.get(name)
    module.__dict__[name] = value
    try:
        yield
    finally:
        if had:
            module.__dict__[name] = before
        else:
            del module.__dict__[name]
