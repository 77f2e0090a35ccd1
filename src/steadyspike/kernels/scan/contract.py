"""The contract between the scan operator and a compiled backend (C++ on CPU, Triton on GPU).

A backend gets tensors that `operator.py` has already checked and laid out:

- ``x`` [T, B, ...] in float64, float32, bfloat16 or float16. Every ``x[t]`` is dense (contiguous, channels_last or any
  permutation of it) with the same strides; ``x.stride(0)`` is free (0 where a static image is repeated in time).
- ``u0`` [1], [C] or ``x.shape[1:]`` (then with the strides of ``x[0]``), ``v`` and ``a`` [1] or [C], all contiguous in
  the compute dtype: float64 for float64 input, else float32.
- The channel of the element at memory offset i of ``x[t]`` is ``(i // x.stride(2)) % x.shape[2]``.
- ``codes`` and ``constants`` are those of `ScanSpec`.
- Outputs are allocated by the backend with the layout of ``x[0]`` per time step and time outermost.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from torch import Tensor


class Backend(Protocol):
    """A compiled LIF scan."""

    name: str

    def why_not(self, x: Tensor) -> str | None:
        """None if this backend can run on ``x`` here and now, else the reason in one sentence."""
        ...

    def forward(
        self,
        x: Tensor,
        u0: Tensor,
        v: Tensor,
        a: Tensor,
        codes: list[int],
        constants: list[float],
        membrane: bool,
        channelwise: bool,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """(out like x, U[T] like x[0] in the compute dtype, M [T, B, ...] in the compute dtype or an empty [0] tensor,
        active [2, C if channelwise else 1] float64); see `core.lif.ScanResult`."""
        ...

    def backward(
        self,
        g_out: Tensor | None,
        g_u: Tensor | None,
        g_m: Tensor | None,
        x: Tensor,
        u0: Tensor,
        v: Tensor,
        a: Tensor,
        codes: list[int],
        constants: list[float],
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """(dx in x's dtype, du0, dv, da shaped like u0, v, a in the compute dtype).

        ``g_out`` [T, B, ...] (x's dtype), ``g_u`` [B, ...] (gradient into U[T]) and ``g_m`` [T, B, ...] (compute dtype)
        are laid out like x[0] per step, with a free time stride; None stands for zeros.
        """
        ...


class Affine(NamedTuple):
    """An input current that a backend works out on the fly: scale x + shift, or scale x + shift + extra_scale extra.

    scale, shift, extra_scale: [C] in the compute dtype; None for an extra_scale of 1. extra: [T, B, C, ...] in x's
    dtype, laid out like x[0] per step, with a free time stride. Only the CPU backend takes one.
    """

    scale: Tensor
    shift: Tensor
    extra: Tensor | None = None
    extra_scale: Tensor | None = None
