"""No speed without correctness: the kernels' tests, run before anything is timed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import torch

from steadyspike.kernels.scan.cpu.backend import CpuBackend

ROOT = Path(__file__).parent.parent
MEMORY = sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("tests/nn/test_memory*.py"))
TESTS = ["tests/kernels", "tests/nn/test_lif.py", *MEMORY]


def passed() -> bool:
    """Runs the tests and shows their last lines; True if there is a kernel to be timed and all pass."""
    missing = CpuBackend().why_not(torch.empty(0))
    if missing is not None:
        print(f"there is no kernel to be timed: {missing}")
        return False
    command = [sys.executable, "-m", "pytest", "-q", "-m", "not slow", *TESTS]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    print("\n".join(done.stdout.splitlines()[-4:]))
    return done.returncode == 0
