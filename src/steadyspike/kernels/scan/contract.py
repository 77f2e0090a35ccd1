"""The contract between the scan operator and a compiled backend (C++ on the CPU, Triton on a GPU).

A backend gets one `Scan`, whose tensors `operator.py` has checked and brought into this layout:

- ``x`` [T, B, ...] in float64, float32, bfloat16 or float16. Every ``x[t]`` is dense (contiguous, channels_last or any
  permutation of it) with the same strides; ``x.stride(0)`` is free (0 if a static image is repeated in time).
- ``u0`` [1], [C] or ``x.shape[1:]`` (then with the strides of ``x[0]``), ``v`` and ``a`` [1] or [C], all contiguous in
  the compute dtype: float64 for float64 input, else float32.
- The channel of the element at memory offset i of ``x[t]`` is ``(i // x.stride(2)) % x.shape[2]``.
- Outputs are allocated by the backend with the layout of ``x[0]`` per time step and time outermost.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from torch import Tensor

from steadyspike.core.spec import ScanSpec

Results = tuple[Tensor, Tensor, Tensor, Tensor]
Forwarded = tuple[Tensor, Tensor | None, Tensor | None, Tensor]
Gradients = tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]


class Call(NamedTuple):
    """The settings of a scan besides its tensors: numbers, flags and names.

    codes, constants: those of `ScanSpec`
    membrane: whether to return M too
    channelwise: MP-Init's statistics per channel
    backend: the chosen one, ``"cpu"`` or ``"triton"``
    """

    codes: tuple[int, ...]
    constants: tuple[float, ...]
    membrane: bool = False
    channelwise: bool = False
    backend: str = "cpu"

    @classmethod
    def of(cls, spec: ScanSpec, membrane: bool = False, channelwise: bool = False, backend: str = "cpu") -> Call:
        return cls(spec.codes, spec.constants, membrane, channelwise, backend)


class Affine(NamedTuple):
    """An input current that a backend computes while it reads x: scale x + shift [+ extra_scale extra].

    scale, shift, extra_scale: [C] in the compute dtype; None for an extra_scale of 1. scale and shift may be [T, C],
    with separate values for each step.
    extra: [T, B, C, ...] in x's dtype, with the layout of x[0] per step and a free time stride
    extra_bits: spikes instead of ``extra``, as `PackedSpikes.words` for steps of whole words; each spike counts as its
        channel's ``extra_scale``. Only the CPU backend supports them.
    """

    scale: Tensor
    shift: Tensor
    extra: Tensor | None = None
    extra_scale: Tensor | None = None
    extra_bits: Tensor | None = None


class AffineGradients(NamedTuple):
    """Gradients of a scan with an `Affine` of [C].

    dextra, dextra_scale: None if not requested, or if there is none
    """

    dx: Tensor
    du0: Tensor
    dv: Tensor
    da: Tensor
    dscale: Tensor
    dshift: Tensor
    dextra: Tensor | None
    dextra_scale: Tensor | None


class NormSums(NamedTuple):
    """Results of the scan's backward that the batch norm before an `Affine` needs.

    center: [C] in the compute dtype, the norm's batch mean
    sums: float64 [2, C], of dx and of dx (x - center)
    """

    center: Tensor
    sums: Tensor


class Scan(NamedTuple):
    """All arguments of a scan: its four tensors, and what to compute from them.

    With ``affine`` the current is that map of x instead of x.
    """

    x: Tensor
    u0: Tensor
    v: Tensor
    a: Tensor
    call: Call
    affine: Affine | None = None


class OutputGradients(NamedTuple):
    """Gradients into the outputs of a scan; None means zeros.

    out: [T, B, ...] (x's dtype)
    u: [B, ...] (into U[T])
    m: [T, B, ...] (compute dtype)

    They have the layout of x[0] per step, with a free time stride.
    """

    out: Tensor | None = None
    u: Tensor | None = None
    m: Tensor | None = None


class Backend(Protocol):
    """A compiled LIF scan."""

    name: str

    def why_not(self, x: Tensor) -> str | None:
        """Returns None if this backend can run on ``x`` here and now, otherwise the reason in one sentence."""
        ...

    def forward(self, scan: Scan) -> Forwarded:
        """Returns the four results of a scan; see `ScanResult`.

        - the output, like x;
        - U[T], like x[0], in the compute dtype;
        - M [T, B, ...] in the compute dtype, if it is requested;
        - active, [2, C if channelwise else 1], float64.
        """
        ...

    def backward(self, scan: Scan, gradients: OutputGradients) -> Gradients:
        """Returns (dx in x's dtype, du0, dv, da shaped like u0, v, a in the compute dtype).

        dx is the gradient of the current.
        """
        ...
