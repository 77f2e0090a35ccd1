"""The C++ LIF kernel against the PyTorch reference and against a plain copy of the bytes it has to move.

Forward reads x and writes the spikes; backward reads x and the gradient and writes dx: five T-sized tensors in all. The
bound is the time that `dst.copy_(src)` takes for as many bytes; with --memcpy it is the C library's memcpy, which
streams large blocks past the cache and is the fastest copy one thread can make. V and tau are learned (one of each, or
per channel).

By default the C library keeps freed memory, so that outputs land on pages that exist and the kernel itself is
measured; with --fresh large outputs come from the system every time, as in a plain training script, and the bound is
`src.clone()`, which pays for the same page faults.

    python benchmarks/kernel_cpu.py --threads 1 --steps 4 10 --surrogate rect
    python benchmarks/kernel_cpu.py --fixed
"""

from __future__ import annotations

import argparse
import ctypes
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from steadyspike.core.heap import keep_freed_memory
from steadyspike.core.reference_scan import reference_scan
from steadyspike.core.spec import ScanSpec
from steadyspike.core.surrogate import SURROGATES, resolve_surrogate
from steadyspike.kernels.layout import compute_dtype
from steadyspike.kernels.library import LIBRARY
from steadyspike.kernels.scan.contract import Call, OutputGradients, Scan
from steadyspike.kernels.scan.cpu.backend import CpuBackend
from steadyspike.nn.lif import LIF

SIZES = {"L2": 32 * 1024, "L3": 256 * 1024, "L3 full": 1024 * 1024, "memory": 16 * 1024 * 1024}  # elements per step


def best(function: Callable[[], object], seconds: float, least: int = 5) -> float:
    """The shortest of many runs but for one in a hundred, in seconds: the machine's other work can only add.

    One thread: its CPU time. The clock of a virtual machine says now and then that no time has passed at all.
    """
    clock = time.thread_time if torch.get_num_threads() == 1 else time.perf_counter
    function()
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < least or time.perf_counter() < end:
        start = clock()
        function()
        times.append(clock() - start)
    return sorted(times)[len(times) // 100]


def measure(x: Tensor, spec: ScanSpec, backend: CpuBackend, args: argparse.Namespace) -> dict[str, float]:
    """Seconds of each measured function on x [T, B, C, H, W]."""
    channelwise, seconds = args.channelwise, args.seconds
    size = x.shape[2] if channelwise else 1
    dtype = compute_dtype(x)
    v, a, u0 = (torch.full((k,), value, dtype=dtype) for k, value in ((size, 1.0), (size, 0.5), (1, 0.4)))
    g = torch.randn_like(x)
    dst = torch.empty_like(x)
    copies: dict[str, Callable[[], object]] = {"copy": lambda: dst.copy_(x), "clone": x.clone}
    copies["memcpy"] = lambda: ctypes.memmove(dst.data_ptr(), x.data_ptr(), x.nbytes)
    times = {"copy": best(copies["memcpy" if args.memcpy else "clone" if args.fresh else "copy"], seconds)}
    scan, gradients = Scan(x, u0, v, a, Call.of(spec, channelwise=channelwise)), OutputGradients(g)
    times["forward"] = best(lambda: backend.forward(scan, potential=False), seconds)
    times["backward"] = best(lambda: backend.backward(scan, gradients), seconds)
    return times


def reference_time(x: Tensor, spec: ScanSpec, seconds: float) -> float:
    leaves = [x.clone(), torch.full((1,), 0.4), torch.full((1,), 1.0), torch.full((1,), 0.5)]
    leaves = [leaf.requires_grad_() for leaf in leaves]
    g = torch.randn_like(x)
    return best(lambda: torch.autograd.grad(reference_scan(*leaves, spec).out, leaves, g), seconds, least=2)


class Nothing(torch.autograd.Function):
    """What torch alone takes for a layer like LIF: a node in Python with two parameters and new memory for results."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, k: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(x, k, w)
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, ...]:
        return tuple(torch.zeros_like(t) for t in ctx.saved_tensors)


def fixed_costs(seconds: float) -> dict[str, tuple[float, float]]:
    """Seconds of layers on next to nothing: an evaluation, and a training forward with its backward.

    "with bits": 4096 elements, from which on the scan writes its spikes as bits too.
    """
    k, w = (torch.zeros(1, requires_grad=True) for _ in range(2))
    small, bits = (4, 1, 16), (4, 1, 64, 16)
    layers: list[tuple[str, Callable[[Tensor], Tensor], tuple[int, ...]]] = [
        ("LIF", LIF(), small),
        ("LIF, U[0], V and tau fixed", LIF(init="zero", learn=()), small),
        ("LIF, with bits", LIF(), bits),
        ("LIF, one V, tau and mean per channel, with bits", LIF(channels=64), bits),
        ("torch: ReLU", torch.nn.ReLU(), small),
        ("torch: BatchNorm2d", torch.nn.BatchNorm2d(1), (4, 1, 1, 16)),
        ("torch: a function in Python that computes nothing", lambda x: Nothing.apply(x, k, w), small),
    ]
    times = {}
    for name, layer, shape in layers:
        x = torch.randn(shape, requires_grad=True)
        g = torch.ones_like(x)
        train = best(lambda layer=layer, x=x, g=g: layer(x).backward(g), seconds)  # type: ignore[misc]
        if isinstance(layer, torch.nn.Module):
            layer.eval()
        with torch.no_grad():
            times[name] = best(lambda layer=layer, x=x: layer(x), seconds), train  # type: ignore[misc]
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--steps", type=int, nargs="+", default=[4, 10])
    parser.add_argument("--sizes", nargs="+", default=list(SIZES), choices=list(SIZES))
    parser.add_argument("--surrogate", default="rect", choices=list(SURROGATES))
    parser.add_argument("--family", default="trsg")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--channels-last", action="store_true")
    parser.add_argument("--channelwise", action="store_true")
    parser.add_argument("--fresh", action="store_true")
    parser.add_argument("--memcpy", action="store_true")
    parser.add_argument("--reference", action="store_true")
    parser.add_argument("--fixed", action="store_true", help="only what a layer costs before any arithmetic")
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--isa", type=int, default=-1)
    parser.add_argument("--library", type=Path, default=LIBRARY)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    if not args.fresh:
        keep_freed_memory()
    if args.fixed:
        print("us                                                  evaluation  forward and backward")
        for name, (evaluate, train) in fixed_costs(args.seconds).items():
            print(f"{name:52} {evaluate * 1e6:9.0f} {train * 1e6:21.0f}")
        return
    backend = CpuBackend(args.library, args.isa)
    spec = ScanSpec(args.family, resolve_surrogate(args.surrogate))
    print(f"{args.threads} threads, {backend.instruction_sets[args.isa]}, {args.surrogate}, {args.dtype}")
    print("size     T  GB/s copy  fwd/copy  bwd/copy  fwd+bwd/copy  [reference/fwd+bwd]")
    for name in args.sizes:
        for steps in args.steps:
            x = torch.randn(steps, SIZES[name] // (64 * 256), 64, 16, 16).add_(0.5).to(getattr(torch, args.dtype))
            if args.channels_last:
                x = x.movedim(2, -1).contiguous().movedim(-1, 2)
            t = measure(x, spec, backend, args)
            both = t["forward"] + t["backward"]
            ratio = f"{reference_time(x, spec, args.seconds) / both:6.1f}" if args.reference else ""
            print(
                f"{name:7} {steps:3} {2 * x.nbytes / t['copy'] / 1e9:9.1f} {t['forward'] / t['copy']:9.2f} "
                f"{t['backward'] / (1.5 * t['copy']):9.2f} {both / (2.5 * t['copy']):12.2f}  {ratio}"
            )


if __name__ == "__main__":
    main()
