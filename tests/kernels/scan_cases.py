"""The cases every LIF kernel must pass, and the comparison with the reference: shared by all backends' tests.

A `Case` says what is computed on which tensors; `check_against_reference` runs it on a backend and on the reference
with the same random cotangents into out, U[T] and M, and compares outputs, statistics and all four gradients.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import product

import torch
from torch import Tensor

from steadyspike.core.reference_scan import per_channel, reference_scan
from steadyspike.core.spec import FAMILIES, Reset, ScanSpec
from steadyspike.core.surrogate import SURROGATES, ArcTan, DSpike, Rect, Sigmoid, Surrogate, Triangle
from steadyspike.kernels.scan import lif_scan

RESETS = [Reset("none")] + [Reset(kind, detach) for kind in ("soft", "hard") for detach in ("none", "spike", "product")]
LAYOUTS = ("contiguous", "channels_last", "permuted", "static", "strided_time")
# Fields away from their defaults, so that a kernel that drops one is found out.
TUNED: dict[str, Surrogate] = {
    "rect": Rect(0.8, 0.5),
    "triangle": Triangle(1.3, 0.3),
    "arctan": ArcTan(3.0, 0.7),
    "sigmoid": Sigmoid(0.25, 1.5),
    "dspike": DSpike(1.4, 0.9, 2.0),
}
# (rtol, atol) by input dtype; half precision is computed in float32 and rounded once on output.
TOLERANCE = {
    torch.float64: (1e-12, 1e-12),
    torch.float32: (2e-5, 2e-6),
    torch.bfloat16: (1e-2, 1e-5),
    torch.float16: (2e-3, 1e-6),
}


@dataclass(frozen=True)
class Case:
    """One scan: spec, x's shape [T, B, C, ...], dtype and layout, and the shapes of v, a ("scalar" or "channel") and u0
    (also "element")."""

    spec: ScanSpec = field(default_factory=ScanSpec)
    shape: tuple[int, ...] = (5, 2, 3, 4, 5)
    dtype: torch.dtype = torch.float64
    layout: str = "contiguous"
    v: str = "scalar"
    a: str = "scalar"
    u0: str = "scalar"
    membrane: bool = True
    channelwise: bool = False

    def __str__(self) -> str:
        s = self.spec
        rule = ("-strict" if s.strict else "") + ("" if s.decay_input else "-rawinput")
        sizes = "x".join(map(str, self.shape))
        return (
            f"{s.family}-{s.surrogate.name}-{s.reset.kind}-{s.reset.detach}{rule}-{sizes}-{self.layout}"
            f"-{str(self.dtype)[6:]}-v_{self.v}-a_{self.a}-u0_{self.u0}"
            + ("" if self.membrane else "-nomembrane")
            + ("-channelwise" if self.channelwise else "")
        )


def full_specs() -> list[ScanSpec]:
    """Every combination: 3 families x 5 surrogates x 7 resets x 2 firing rules x 2 input scalings = 420."""
    grid = product(FAMILIES, SURROGATES, RESETS, (False, True), (False, True))
    return [ScanSpec(family, TUNED[name], reset, strict, decay) for family, name, reset, strict, decay in grid]


def few_specs() -> list[ScanSpec]:
    """Every family with every reset, every surrogate with every family, both firing rules and input scalings; 21."""
    names = list(SURROGATES)
    return [
        ScanSpec(family, TUNED[names[(i + j) % 5]], reset, strict=(i + j) % 2 == 1, decay_input=(i + j) % 3 != 1)
        for i, family in enumerate(FAMILIES)
        for j, reset in enumerate(RESETS)
    ]


def parameter_cases(**fields: object) -> list[Case]:
    """Every shape of v, a and u0 in every layout, with and without channel-wise statistics."""
    grid = product(LAYOUTS, ("scalar", "channel"), ("scalar", "channel"), ("scalar", "channel", "element"))
    return [
        replace(Case(layout=layout, v=v, a=a, u0=u0, channelwise=(i % 2 == 1)), **fields)  # type: ignore[arg-type]
        for i, (layout, v, a, u0) in enumerate(grid)
    ]


def size_cases(**fields: object) -> list[Case]:
    """Awkward sizes: one element, one step, primes, no channel axis, more axes, many steps, 0 elements."""
    shapes: list[tuple[int, ...]] = [
        (1, 1, 1), (2, 1, 1, 1, 1), (7, 63, 1), (33, 1, 500), (3, 2, 63), (4, 3, 2, 17, 19), (2, 5), (2, 3, 4, 5, 6, 2),
        (1, 2, 1031), (130, 2, 3), (3, 0, 4), (2, 3, 0, 5),
    ]  # fmt: skip
    shared = [replace(Case(shape=s), **fields) for s in shapes]  # type: ignore[arg-type]
    with_channels = [c for c in shared if len(c.shape) > 2]
    return shared + [replace(c, v="channel", a="channel", u0="channel", channelwise=True) for c in with_channels]


def arrange(x: Tensor, layout: str) -> Tensor:
    """The same values as ``x`` [T, B, C, ...] in the named memory layout ("static" repeats x[0] over time)."""
    if layout == "static":
        return x[:1].expand(x.shape)
    if layout == "strided_time":
        return torch.stack([x, torch.full_like(x, float("nan"))], 1)[:, 0]
    if layout == "channels_last" and x.ndim > 3:
        return x.movedim(2, -1).contiguous().movedim(-1, 2)
    if layout == "permuted" and x.ndim > 2:
        order = [0, *range(x.ndim - 1, 0, -1)]
        return x.permute(order).contiguous().permute(order)
    return x.contiguous()


@dataclass
class Inputs:
    x: Tensor
    u0: Tensor
    v: Tensor
    a: Tensor


def _edges(spec: ScanSpec, v: Tensor) -> list[Tensor]:
    """Potentials at which the forward or the surrogate jumps: the threshold and the edges of a window."""
    if spec.surrogate.name not in ("rect", "dspike"):
        return [v]
    half = spec.surrogate.constants[0] / 2
    return [v, v - half, v + half] if spec.family == "as" else [v, v * (1 - half), v * (1 + half)]


def draw_inputs(case: Case, seed: int = 0, margin: float = 1e-4) -> Inputs:
    """Random x, u0, v, a such that no potential comes within ``margin`` of a jump, so that rounding cannot decide."""
    g = torch.Generator().manual_seed(seed)
    compute = torch.promote_types(case.dtype, torch.float32)
    sizes = {"scalar": (1,), "channel": case.shape[2:3], "element": case.shape[1:]}

    def uniform(kind: str, low: float, high: float) -> Tensor:
        return torch.rand(sizes[kind], generator=g, dtype=torch.float64).mul(high - low).add(low).to(compute)

    v, a, u0 = uniform(case.v, 0.4, 1.5), uniform(case.a, 0.3, 0.9), uniform(case.u0, -0.3, 0.6)

    def fresh() -> Tensor:
        return torch.randn(case.shape, generator=g, dtype=torch.float64).mul(1.5).add(0.6).to(case.dtype)

    x = arrange(fresh(), case.layout)
    for _ in range(50):
        m = reference_scan(x.double(), u0.double(), v.double(), a.double(), case.spec, membrane=True).m
        assert m is not None
        edges = _edges(case.spec, per_channel(v.double(), m.ndim - 1))
        bad = torch.stack([((m - edge).abs() < margin).any(0) for edge in edges]).any(0)
        if not bad.any():
            return Inputs(x, u0, v, a)
        x = arrange(torch.where(bad, fresh(), x), case.layout)
    raise AssertionError(f"no inputs away from the jumps found for {case}")


def dyadic_inputs(case: Case, seed: int = 0) -> Inputs:
    """Inputs on a coarse binary grid: the arithmetic of a few steps is exact, and M == V and window edges occur."""
    g = torch.Generator().manual_seed(seed)
    compute = torch.promote_types(case.dtype, torch.float32)
    x = torch.randint(-4, 9, case.shape, generator=g).div(2).to(case.dtype)
    one = torch.ones(1, dtype=compute)
    return Inputs(arrange(x, case.layout), 0 * one, one, 0.5 * one)


def run(case: Case, inputs: Inputs, backend: str, device: str = "cpu", seed: int = 1) -> dict[str, Tensor]:
    """Outputs and gradients of the case on ``backend``, by name; cotangents depend on ``seed`` only."""
    x = inputs.x.detach().to(device)
    leaves = [x, *(p.detach().to(device) for p in (inputs.u0, inputs.v, inputs.a))]
    x, u0, v, a = (p.requires_grad_() for p in leaves)
    res = lif_scan(x, u0, v, a, case.spec, membrane=case.membrane, channelwise=case.channelwise, backend=backend)
    g = torch.Generator().manual_seed(seed)
    outputs = [t for t in (res.out, res.u, res.m) if t is not None]
    cotangents = [torch.randn(t.shape, generator=g, dtype=torch.float64).to(t.dtype).to(device) for t in outputs]
    grads = torch.autograd.grad(outputs, [x, u0, v, a], cotangents)
    named = dict(zip(("out", "u", "m"), outputs))
    named["active_sum"], named["active_count"] = res.active[0], res.active[1]
    named |= dict(zip(("dx", "du0", "dv", "da"), grads))
    return {name: t.detach().cpu() for name, t in named.items()}


def check_against_reference(
    case: Case, backend: str, device: str = "cpu", seed: int = 0, inputs: Inputs | None = None
) -> dict[str, Tensor]:
    """Run on ``backend`` and on the reference and compare everything; returns the backend's tensors."""
    inputs = inputs or draw_inputs(case, seed)
    got = run(case, inputs, backend, device, seed + 1)
    want = run(case, inputs, "reference", "cpu", seed + 1)
    rtol, atol = TOLERANCE[case.dtype]
    assert got.keys() == want.keys()
    torch.testing.assert_close(got["out"], want["out"], rtol=1e-6 if case.dtype == torch.float32 else rtol, atol=0)
    torch.testing.assert_close(got["active_count"], want["active_count"], rtol=0, atol=0)
    # Sums over many elements: the tolerance is that of one term times the root of their number.
    terms = max(1, inputs.x.numel()) ** 0.5
    summed = {"active_sum", "du0", "dv", "da"}
    # Shared parameters are float32 whatever x is; half precision enters only through x and g_out, equal on both sides.
    wide = TOLERANCE[torch.promote_types(case.dtype, torch.float32)]
    for name in want:
        r, t = (rtol, atol) if name in ("out", "dx") else wide
        t = t * terms if name in summed else t
        torch.testing.assert_close(
            got[name], want[name], rtol=r, atol=t, msg=lambda text, name=name: f"{name} of {case}: {text}"
        )
    return got
