"""What the kernels share with torch in one process: one OpenMP runtime, forked children, bounded caches."""

import functools
import gc
import os
import subprocess
import sys
import textwrap
import tracemalloc
from pathlib import Path

import pytest
import torch

from steadyspike.kernels.conv import call, rule
from steadyspike.kernels.conv.geometry import conv_geometry, linear_geometry
from steadyspike.kernels.layout import KEPT_SHAPES, fills_one_block
from steadyspike.kernels.library import LIBRARY

BUILT = pytest.mark.skipif(isinstance(call.conv_library(), str), reason="the C++ extension is not built")


def run(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=120, env={**os.environ}
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@BUILT
@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="looks at the files that Linux has mapped")
def test_there_is_one_openmp_runtime() -> None:
    """A second one would have threads of its own, which spin while torch's compute."""
    names = run(
        """
        import torch, steadyspike as ss
        torch.set_num_threads(2)
        ss.LIF()(torch.randn(4, 64, 1024))
        torch.nn.Conv2d(3, 4, 3)(torch.randn(8, 3, 32, 32))
        files = {line.split()[-1] for line in open("/proc/self/maps")}
        print(sum(any(name in file for name in ("libgomp", "libiomp", "libomp")) for file in files))
        """
    )
    assert names == "1"


@BUILT
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="counts threads as Linux lists them")
@pytest.mark.parametrize(("loaded", "kept"), [("import torch", "1"), ("", "0")])
def test_threads_are_those_of_torch_if_there_is_torch(loaded: str, kept: str) -> None:
    """OpenMP keeps its threads after a call; without it, those that the call started have ended."""
    code = f"""
        import ctypes, os
        import numpy as np
        {loaded}
        library = ctypes.CDLL({str(LIBRARY)!r})
        x, one, integer = np.ones(100_000, np.float32), np.ones(1, np.float32), ctypes.c_int64
        address = lambda array: ctypes.c_void_p(array.ctypes.data)
        before = len(os.listdir("/proc/self/task"))
        sizes = [integer(n) for n in (4, 100_000, 1, 1000)]
        sums, scale, written = np.zeros(2), 3 * one, np.zeros(1, np.float32)
        norm = (ctypes.c_void_p * 6)(*(a.ctypes.data for a in (sums, one, one, scale, written, written)))
        status = library.steadyspike_norm_input_gradient(*[address(x)] * 3, *sizes, norm, integer(2))
        assert status == 0 and (x == 3).all()
        print(len(os.listdir("/proc/self/task")) - before)
        """
    assert run(code) == kept


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system does not fork")
def test_a_forked_child_with_one_thread_computes_after_a_threaded_forward() -> None:
    """With more threads torch's own operators hang in the child, too (docs/reliability.md)."""
    code = """
        import os, warnings, torch, steadyspike as ss
        warnings.simplefilter("ignore")
        torch.set_num_threads(2)
        layer, x = ss.LIF(), torch.randn(4, 8, 4096)
        expected = layer.eval()(x)
        child = os.fork()
        if child == 0:
            torch.set_num_threads(1)
            os._exit(0 if torch.equal(layer(x), expected) else 3)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        """
    assert run(code) == "0"


def shapes(start: int, stop: int) -> None:
    """Asks everything that is kept per shape, for a convolution and a linear layer of many sizes."""
    weight, matrix = torch.empty(2, 1, 1, 1), torch.empty(3, 1)
    costs = next(iter(rule.COSTS.values()))
    for n in range(start, stop):
        x = torch.empty(1, 1, 1, n)
        fills_one_block(x)
        for geometry in (conv_geometry(x, weight, (1, 1), (0, 0), (1, 1)), linear_geometry(x.view(n, 1), matrix)):
            assert geometry is not None
            call.packed_size(geometry)
            rule.forward_by_events(geometry, 1, costs)


@BUILT
def test_thousands_of_shapes_take_no_more_memory_than_the_last_ones() -> None:
    gc.collect()
    caches = [
        actual
        for module in list(sys.modules.values())
        if getattr(module, "__name__", "").startswith("steadyspike.kernels")
        for actual in vars(module).values()
        if isinstance(actual, functools._lru_cache_wrapper)
    ]
    assert len(caches) >= 6
    sizes = [cache.cache_parameters()["maxsize"] for cache in caches]
    assert max(size for size in sizes if size is not None) <= KEPT_SHAPES  # None: a fact of the machine, kept once
    shapes(1, KEPT_SHAPES + 1)
    gc.collect()
    tracemalloc.start()
    try:
        shapes(KEPT_SHAPES + 1, 4 * KEPT_SHAPES)
        gc.collect()
        # The last shapes replace the first ones, which were allocated before.
        assert tracemalloc.get_traced_memory()[0] < 6000 * KEPT_SHAPES
    finally:
        tracemalloc.stop()
