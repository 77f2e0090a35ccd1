"""The Triton kernels compiled for real cards, without one: CUDA sm_80 and sm_90 to cubin, ROCm gfx942 to hsaco.

The sources are built from the very launches that the backend would start, on meta tensors, so a kernel that does not
compile, or an argument that it does not know, fails here.
"""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
import torch

from steadyspike.analysis.gpu.compiled_kernels import TARGETS as ALL_TARGETS
from steadyspike.analysis.gpu.compiled_kernels import compiled, layer_launches, usage
from steadyspike.core.spec import ScanSpec
from steadyspike.kernels.layout import compute_dtype, empty_steps
from steadyspike.kernels.scan.contract import Affine, Call, OutputGradients, Scan
from steadyspike.kernels.scan.triton.backend import backward_launch, forward_launch
from steadyspike.kernels.scan.triton.launch import CONFIGS, FIXED, Launch
from tests.kernels.scan_cases import TUNED, Case, arrange, few_specs

pytest.importorskip("triton")
TARGETS = ("sm_80", "sm_90", "gfx942")
SHAPE = (4, 4, 64, 16, 16)


@pytest.fixture(autouse=True)
def _empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A binary compiled earlier must not stand in for one that no longer compiles."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))


def launches(case: Case) -> tuple[Launch, Launch]:
    """The forward and the backward launch of a case, on meta tensors."""
    x = arrange(torch.empty(case.shape, dtype=case.dtype, device="meta"), case.layout)
    dtype = compute_dtype(x)
    sizes = {"scalar": (1,), "channel": case.shape[2:3], "element": case.shape[1:]}
    u0, v, a = (torch.empty(sizes[kind], dtype=dtype, device="meta") for kind in (case.u0, case.v, case.a))
    out, u = empty_steps(x, x.dtype), torch.empty_like(x[0], dtype=dtype)
    m = empty_steps(x, dtype) if case.membrane else None
    scan = Scan(x, u0, v, a, Call.of(case.spec, case.membrane, case.channelwise))
    forward, _ = forward_launch(scan, out, u, m)
    du0 = u if case.u0 == "element" else None
    backward, _ = backward_launch(scan, OutputGradients(out, u, m), out, du0)
    return forward, backward


def check(case: Case, target: str, config: tuple[int, int] = FIXED) -> None:
    for launch in launches(case):
        assembly = compiled(launch, target, config).asm
        binary = assembly["hsaco" if target == "gfx942" else "cubin"]
        assert isinstance(binary, bytes) and binary[:4] == b"\x7fELF" and len(binary) > 4000


MAIN = [
    Case(ScanSpec(), SHAPE, torch.float32, membrane=False),
    Case(
        ScanSpec("rs", TUNED["dspike"], "hard", strict=True, decay_input=False),
        SHAPE,
        torch.bfloat16,
        "channels_last",
        "channel",
        "channel",
        "element",
        channelwise=True,
    ),
    Case(ScanSpec("as", TUNED["arctan"], "none"), (9, 4, 10), torch.float64, v="channel", u0="channel"),
]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("case", MAIN, ids=str)
def test_compiles_for_a_card(case: Case, target: str) -> None:
    check(case, target)


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("spec", few_specs(), ids=str)
def test_every_spec_compiles(spec: ScanSpec, target: str) -> None:
    check(Case(spec, SHAPE, torch.float32), target)


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("timesteps", [1, 8, 11])
def test_every_dtype_and_layout_compiles(timesteps: int, dtype: torch.dtype, target: str) -> None:
    base = Case(ScanSpec(surrogate="sigmoid"), (timesteps, *SHAPE[1:]), dtype)
    for layout in ("contiguous", "channels_last", "static"):
        check(replace(base, layout=layout, v="channel", u0="element"), target)
    check(base, target)


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("config", CONFIGS)
def test_every_tuned_block_size_compiles(config: tuple[int, int], target: str) -> None:
    for case in MAIN:
        check(case, target, config)


@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
@pytest.mark.parametrize("kind", ["scalar", "channel"])
def test_memory_is_moved_in_16_byte_pieces(kind: str, layout: str) -> None:
    """The kernels are bound by memory: every access to a tensor must be vectorised in the layouts that matter."""
    case = Case(ScanSpec(), SHAPE, torch.float32, layout, kind, kind, membrane=False)
    for launch in launches(case):
        assembly = compiled(launch, "sm_80").asm["ptx"]
        tensor_loads = launch.kernel.__name__ == "backward_kernel"
        steps = SHAPE[0]
        # Backward: x and g_out of each step and g_u; forward: x of the first step and of the next one in the loop.
        expected = 2 * steps + 1 if tensor_loads else 2
        assert len(re.findall(r"ld\.global\.v4\.b32", assembly)) >= expected
        # dx of each step; the spikes in the loop and U[T].
        assert len(re.findall(r"st\.global\.v4\.b32", assembly)) >= (steps if tensor_loads else 2)
        # What is left are parameters (at most one per thread and channel) and partial sums.
        assert len(re.findall(r"st\.global\.b32", assembly)) == 0


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("target", ALL_TARGETS)
def test_no_register_is_spilled(target: str, channels_last: bool) -> None:
    """A spill is memory traffic that nothing counts: no kernel of a layer may have one for T up to 8.

    The longest T with a shortcut's norm needs the most registers; every other case is in the slow test below.
    """
    launches = layer_launches(8, torch.float32, channels_last=channels_last, shortcut="norm")
    for name, (launch, config) in launches.items():
        used = usage(compiled(launch, target, config), target, config[1])
        assert used.spilled == 0, f"{name}: {used}"
        assert 0 < used.registers <= 512 and used.occupancy > 0


@pytest.mark.parametrize("target", ["sm_80", "gfx942"])
def test_a_spill_is_noticed(target: str) -> None:
    """The same kernel with 32 elements per thread does not fit into the registers."""
    launch, _ = layer_launches(8, torch.float32, shortcut="norm")["backward"]
    assert usage(compiled(launch, target, (4096, 4)), target, 4).spilled > 0


@pytest.mark.slow
@pytest.mark.parametrize("target", ALL_TARGETS)
@pytest.mark.parametrize("timesteps", range(1, 9))
@pytest.mark.parametrize("surrogate", TUNED)
def test_no_register_is_spilled_at_any_length(timesteps: int, target: str, surrogate: str) -> None:
    dtypes = (torch.bfloat16, torch.float16, torch.float32)
    for channels_last, shortcut, dtype in product((False, True), ("none", "spikes", "norm"), dtypes):
        spec = ScanSpec(surrogate=TUNED[surrogate])
        launches = layer_launches(timesteps, dtype, channels_last=channels_last, shortcut=shortcut, spec=spec)
        if surrogate != "rect":  # only the backward has a surrogate
            launches = {"backward": launches["backward"]}
        for name, (launch, config) in launches.items():
            used = usage(compiled(launch, target, config), target, config[1])
            assert used.spilled == 0, f"{name}, T = {timesteps}, {dtype}, {channels_last=}, {shortcut=}: {used}"


@pytest.mark.parametrize("target", ["sm_80", "gfx942"])
@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
def test_every_form_of_the_current_compiles(layout: str, target: str) -> None:
    """A scale per step (evaluation), and a shortcut with its own scale (training), T in one segment and in two."""
    for timesteps in (4, 11):
        x = arrange(torch.empty((timesteps, *SHAPE[1:]), dtype=torch.bfloat16, device="meta"), layout)
        one, per_channel, per_step = (torch.empty(n, device="meta") for n in ((1,), (64,), (timesteps, 64)))
        call, out = Call.of(ScanSpec(), channelwise=True, backend="triton"), empty_steps(x, x.dtype)
        evaluated = Scan(x, one, one, one, call, Affine(per_step, per_step, x))
        trained = Scan(x, per_channel, one, one, call, Affine(per_channel, per_channel, x, per_channel))
        forms = [forward_launch(evaluated, out, None, None), forward_launch(trained, out, out[0].float(), None)]
        for launch, _ in (*forms, backward_launch(trained, OutputGradients(out), out, None, out)):
            assert compiled(launch, target).asm["hsaco" if target == "gfx942" else "cubin"]
