"""No speed without correctness: the kernels' tests, run before anything is timed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
TESTS = ["tests/kernels", "tests/nn/test_memory.py", "tests/nn/test_memory_bits.py", "tests/nn/test_lif.py"]


def passed() -> bool:
    """Runs the tests and shows their last lines; True if all pass."""
    command = [sys.executable, "-m", "pytest", "-q", "-m", "not slow", *TESTS]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    print("\n".join(done.stdout.splitlines()[-4:]))
    return done.returncode == 0
