"""The kernels on aarch64 (NEON registers of 16 bytes) under qemu-user: bit for bit as on x86, with two exceptions.

Torch is not needed there: calls are recorded here, repeated by a small C program, and what they wrote is compared.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import struct
import subprocess
import sys
from itertools import count
from pathlib import Path

import pytest
import torch

from steadyspike.core.spec import FAMILIES, Reset, ScanSpec
from steadyspike.kernels.conv.abi import BY_CHANNEL, BY_TAP
from steadyspike.kernels.conv.call import conv_struct, instruction_set, packed_size
from steadyspike.kernels.conv.geometry import ConvGeometry
from steadyspike.kernels.scan.contract import Call
from steadyspike.kernels.scan.cpu.abi import pack_backward, pack_forward
from steadyspike.kernels.scan.cpu.norm_gradient import NORM
from steadyspike.kernels.scan.cpu.plan import plan_for
from tests.kernels.recorded import Recording
from tests.kernels.scan_cases import TUNED

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
SYSROOT = "/usr/aarch64-linux-gnu"
GCC = ["aarch64-linux-gnu-g++"]
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
_numbers = count()


def zig() -> list[str] | None:
    """zig's C++ compiler for aarch64, from the path or from the package ziglang."""
    command = ["zig"] if shutil.which("zig") else [sys.executable, "-m", "ziglang"]
    reference = shutil.which("zig") or importlib.util.find_spec("ziglang")
    return [*command, "c++", "-target", "aarch64-linux-gnu.2.28"] if reference else None


@pytest.fixture(scope="module", params=["gcc", "clang"])
def there(request, tmp_path_factory):
    """The command that repeats calls with a library that this compiler has built."""
    for name in (GCC[0], "qemu-aarch64"):
        if shutil.which(name) is None:
            pytest.skip(f"{name} is not installed")
    compiler = GCC if request.param == "gcc" else zig()
    if compiler is None:
        pytest.skip("zig is not installed (pip install ziglang)")
    folder, text = tmp_path_factory.mktemp(request.param), " ".join(compiler)
    environment = {"CC": text, "CXX": text, "CFLAGS": "", "LDFLAGS": ""}
    environment |= dict.fromkeys(("LDSHARED", "LDCXXSHARED"), f"{text} -shared")
    build = [sys.executable, "setup.py", "-q", "build_ext", "--build-lib", str(folder), "--build-temp", f"{folder}/o"]
    done = subprocess.run(build, cwd=ROOT, env=os.environ | environment, capture_output=True, text=True)
    libraries = list(folder.rglob("_native.so"))
    assert libraries, done.stderr
    replay = folder / "replay"
    subprocess.run(["aarch64-linux-gnu-gcc", "-O1", str(HERE / "replay.c"), "-o", str(replay), "-ldl"], check=True)
    return ["qemu-aarch64", "-L", SYSROOT, str(replay), str(libraries[0])]


def add_scan(recording, spec, dtype, shape=(4, 2, 6, 5, 7), channelwise=False, threads=1):
    """A forward and a backward of the scan; threads: of the call."""
    name, wide = f"scan {next(_numbers)}", torch.promote_types(dtype, torch.float32)
    sizes = (shape[2],) if channelwise else (1,)
    x = recording.normal(*shape, dtype=dtype, mean=0.3)
    u0, v = recording.normal(*shape[1:], dtype=wide), recording.tensor(sizes, wide).fill_(0.9)
    a = recording.tensor(sizes, wide).fill_(0.4)
    call = Call.of(spec, membrane=not channelwise, channelwise=channelwise)
    plan = plan_for((x.shape, x.stride(), x.dtype), call, u0.shape, v.shape, a.shape)
    given = [*(t.data_ptr() for t in (x, u0, v, a)), x.stride(0), 0, threads, -1]
    out, u = recording.tensor(shape, dtype, f"{name} out"), recording.tensor(shape[1:], wide, f"{name} u")
    active = recording.tensor(plan.active, torch.float64, f"{name} sum of active")
    m = recording.tensor(shape, wide, f"{name} m").data_ptr() if call.membrane else 0
    io = (out.data_ptr(), u.data_ptr(), m, active.data_ptr(), channelwise, 0, 0, 0)
    recording.call("neuron_forward", recording.struct(plan.fixed + pack_forward(*given, *io, 0, 0, 0, 0, 0.0, 0.0)))
    g, g_u = recording.normal(*shape, dtype=dtype), recording.normal(*shape[1:], dtype=wide)
    dx, du0 = recording.tensor(shape, dtype, f"{name} dx"), recording.tensor(shape[1:], wide, f"{name} du0")
    dv, da = recording.tensor(sizes, wide, f"{name} sum dv"), recording.tensor(sizes, wide, f"{name} sum da")
    ends = [t.data_ptr() for t in (dx, du0, dv, da)]
    io = (g.data_ptr(), g_u.data_ptr(), 0, g.stride(0), 0, *ends, 0, 0, 0, 0)
    recording.call("neuron_backward", recording.struct(plan.fixed + pack_backward(*given, *io, 0, 0)))


def add_convolution(recording, geometry, threads=1):
    """Forward and both gradients of a convolution of spikes."""
    name = f"conv {next(_numbers)}"
    words = recording.words(
        geometry.steps, -(-geometry.batch * geometry.in_channels * geometry.height * geometry.width // 64)
    )
    packed_struct = conv_struct(geometry, words)
    packed_struct.threads = threads
    struct_address = recording.struct(bytes(packed_struct))
    weight = recording.normal(geometry.out_channels, geometry.in_channels, *geometry.kernel)
    level = recording.normal(geometry.in_channels, mean=2.0)
    bias = recording.normal(geometry.out_channels)
    pixels = (geometry.images, geometry.out_channels, *geometry.out_size)
    g = recording.normal(*pixels)
    out = recording.tensor(pixels, name=f"{name} out")
    dx = recording.tensor((geometry.images, geometry.in_channels, geometry.height, geometry.width), name=f"{name} dx")
    dw = recording.tensor(tuple(weight.shape), name=f"{name} sum dw")

    def of_weight(t):
        return recording.struct(struct.pack("P4q", t.data_ptr(), *t.stride()))

    room = packed_size(geometry) + 4096  # the order of weights depends on the registers
    packed, by_channel = recording.tensor((room,)), recording.tensor((room,))
    recording.call("conv_pack", struct_address, of_weight(weight), level.data_ptr(), BY_TAP, packed.data_ptr())
    recording.call("conv_forward", struct_address, packed.data_ptr(), bias.data_ptr(), out.data_ptr(), number=0.7)
    recording.call("conv_weight_gradient", struct_address, g.data_ptr(), level.data_ptr(), level.numel(), of_weight(dw))
    recording.call("conv_pack", struct_address, of_weight(weight), 0, BY_CHANNEL, by_channel.data_ptr())
    recording.call("conv_input_gradient", struct_address, by_channel.data_ptr(), g.data_ptr(), dx.data_ptr())
    if geometry.has_full_input_gradient:
        full = recording.tensor(tuple(dx.shape), name=f"{name} full dx")
        recording.call("conv_full_input_gradient", struct_address, of_weight(weight), g.data_ptr(), full.data_ptr())


def add_bits(recording, dtype, n=64 * 40):
    """Spikes to bits and back, and the last step of a norm's backward."""
    name, channels = f"bits {next(_numbers)}", 5
    level = recording.normal(channels, dtype=dtype, mean=2.0)
    fired = torch.rand(n, generator=recording.random) < 0.3
    spikes = recording.tensor((n,), dtype).copy_(fired * level[torch.arange(n) // 8 % channels].float())
    words, again = (
        recording.tensor((n // 64,), torch.int64, f"{name} words"),
        recording.tensor((n,), dtype, f"{name} spikes"),
    )
    counts = recording.tensor((2,), torch.int64, f"{name} counts")
    sizes = (n, level.element_size(), level.data_ptr(), channels, 8)
    recording.call("bits_pack", spikes.data_ptr(), *sizes, words.data_ptr(), 3)
    recording.call("bits_unpack", words.data_ptr(), *sizes, again.data_ptr(), 3)
    recording.call("bits_count", words.data_ptr(), 2, n // 128, counts.data_ptr())


def add_norm(recording):
    n, channels, inner = 2 * 6 * 35, 6, 35
    dy, *by_constants = (recording.tensor((m,), name=f"norm {i}") for i, m in enumerate((n, channels, channels)))
    tensors = [recording.normal(n).data_ptr(), recording.normal(n).data_ptr(), dy.data_ptr()]
    numbers = [recording.normal(2 * channels, dtype=torch.float64), *(recording.normal(channels) for _ in range(3))]
    norm = recording.struct(NORM.pack(*(t.data_ptr() for t in (*numbers, *by_constants))))
    recording.call("norm_input_gradient", *tensors, 4, n, channels, inner, norm, 2)


def differing(recording, command):
    """Per output that differs: (share of elements, largest relative difference)."""
    (returned, here), (returned_there, there) = recording.run_here(), recording.run_there(command)
    assert returned == returned_there == [0] * len(returned)
    differences = {}
    for name, expected in here.items():
        wrong = expected.view(torch.uint8) != there[name].view(torch.uint8)
        assert expected.count_nonzero() > 0, f"{name} is empty"
        if wrong.any():
            a, b = expected.double(), there[name].double()
            differences[name] = float((a != b).double().mean()), float((a - b).abs().max() / a.abs().max())
    return differences


@pytest.mark.slow
def test_scans(there):
    recording = Recording()
    for family in FAMILIES:
        for surrogate in TUNED.values():
            add_scan(recording, ScanSpec(family, surrogate=surrogate), torch.float32)
    for dtype in DTYPES:
        add_scan(recording, ScanSpec(), dtype, threads=3)
        add_scan(recording, ScanSpec(reset=Reset("hard", "spike")), dtype)
        add_scan(recording, ScanSpec(), dtype, channelwise=True)
        add_scan(recording, ScanSpec(), dtype, shape=(4, 2, 64, 4, 4), channelwise=True)
    wrong = differing(recording, there)
    # Sums over neurons are added up per register, whose width differs; everything else is equal.
    sums = {name: relative for name, (_, relative) in wrong.items() if " sum " in name}
    assert set(wrong) == set(sums), wrong
    assert all(relative < 1e-5 for relative in sums.values()), sums


@pytest.mark.slow
def test_convolutions_bits_and_norms(there):
    recording = Recording()
    add_convolution(recording, ConvGeometry(3, 2, 16, 9, 9, 24, (3, 3), (1, 1), (1, 1)))
    add_convolution(recording, ConvGeometry(2, 2, 32, 9, 9, 70, (3, 3), (2, 2), (1, 1)), threads=3)
    add_convolution(recording, ConvGeometry(2, 1, 64, 6, 6, 16, (1, 1), channels_last=False))
    for dtype in DTYPES:
        add_bits(recording, dtype)
    add_norm(recording)
    wrong = differing(recording, there)
    # An input gradient is a dot product: each lane adds up its part, so the order follows the register's width, and
    # AVX2 and AVX-512 round product and sum at once. SSE2 has the width of NEON: with it nothing differs.
    dots = {name for name in wrong if name.startswith("conv ") and name.endswith(" dx")}
    assert set(wrong) == (dots if instruction_set() != "base" else set()), wrong
    assert all(relative < 1e-6 for _, relative in wrong.values()), wrong
