"""`Current`: the input of a neuron that need not be in memory, because the neuron can work it out from its terms.

Norms that keep nothing but their input return one; it adds to other currents and tensors, and a neuron layer takes it
in place of a tensor. Anything else that touches it gets a tensor, with the same gradients.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from steadyspike.core.lif import ScanResult
from steadyspike.core.spec import ScanSpec
from steadyspike.kernels.current_scan import Call, scan_terms, sum_terms
from steadyspike.kernels.registry import choose_backend
from steadyspike.kernels.terms import Term

MAX_TERMS = 2  # a longer sum would be worked out term by term at every use


class Current:
    """A sum of terms, [T, B, C, ...]; ``steps`` is T, also where all terms are the same at every step."""

    def __init__(self, terms: tuple[Term, ...], steps: int) -> None:
        self.terms, self.steps = terms, steps
        self._tensor: Tensor | None = None

    @property
    def shape(self) -> torch.Size:
        return torch.Size((self.steps, *self.terms[0].y.shape[1:]))

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def dtype(self) -> torch.dtype:
        return self.terms[0].y.dtype

    @property
    def device(self) -> torch.device:
        return self.terms[0].y.device

    def is_floating_point(self) -> bool:
        return True

    def tensor(self) -> Tensor:
        """The current in memory, differentiable."""
        if self._tensor is None:
            self._tensor = sum_terms(self.terms, self.steps)
        return self._tensor

    def sample(self) -> Tensor:
        """A tensor that tells this current from others, [T or 1, B, ...]: its first term before the norm."""
        return self.terms[0].y

    def expand(self, *shape: int) -> Current | Tensor:
        """The same at ``shape[0]`` steps, if this is one step."""
        if self.steps == 1 and tuple(shape[1:]) == tuple(self.shape[1:]):
            return Current(self.terms, shape[0])
        return self.tensor().expand(*shape)

    def scan(
        self, u0: Tensor, v: Tensor, a: Tensor, spec: ScanSpec, *, membrane: bool, channelwise: bool, backend: str
    ) -> ScanResult:
        """`lif_scan` of this current, whose terms are all that is saved for the backward."""
        chosen = choose_backend(backend, self.terms[0].y)
        of_batch = tuple(term.of_batch for term in self.terms)
        return scan_terms(self.terms, u0, v, a, Call(spec, self.steps, membrane, channelwise, chosen, of_batch))

    def __add__(self, other: Any) -> Current | Tensor:
        if isinstance(other, Tensor) and other.shape == self.shape and other.dtype == self.dtype:
            other = Current((Term(other),), self.steps)
        if not isinstance(other, Current) or other.shape != self.shape or other.dtype != self.dtype:
            return self.tensor() + other
        parts = [self, other]
        while sum(len(part.terms) for part in parts) > MAX_TERMS:
            longest = max(parts, key=lambda part: len(part.terms))
            if len(longest.terms) == 1:
                break
            parts[parts.index(longest)] = Current((Term(longest.tensor()),), self.steps)
        return Current(tuple(term for part in parts for term in part.terms), self.steps)

    __radd__ = __add__

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        from torch.utils._pytree import tree_map_only

        if func in (torch.add, Tensor.add, Tensor.__add__) and len(args) == 2 and not kwargs:
            tensor, current = args
            return current + tensor if isinstance(current, cls) else tensor.tensor() + current
        args, kwargs = tree_map_only(cls, cls.tensor, (args, kwargs or {}))
        return func(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.tensor(), name)

    def __getitem__(self, index: Any) -> Tensor:
        return self.tensor()[index]

    def __len__(self) -> int:
        return self.steps

    def __neg__(self) -> Tensor:
        return -self.tensor()

    def __mul__(self, other: Any) -> Tensor:
        return self.tensor() * other

    __rmul__ = __mul__

    def __sub__(self, other: Any) -> Tensor:
        return self.tensor() - other

    def __rsub__(self, other: Any) -> Tensor:
        return other - self.tensor()

    def __truediv__(self, other: Any) -> Tensor:
        return self.tensor() / other

    def __repr__(self) -> str:
        norms = sum(term.normed for term in self.terms)
        return f"Current(shape={list(self.shape)}, {norms} normalised + {len(self.terms) - norms} plain terms)"
