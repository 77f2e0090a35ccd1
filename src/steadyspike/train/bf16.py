"""Does bfloat16 work on this CPU? Some virtual machines announce AMX and then kill the process that uses it."""

from __future__ import annotations

import subprocess
import sys
from functools import cache

_PROBE = """
import torch
with torch.autocast("cpu", torch.bfloat16):
    torch.nn.Linear(64, 10)(torch.randn(64, 64)).float().sum().backward()
    torch.nn.Conv2d(8, 8, 3)(torch.randn(8, 8, 8, 8)).float().sum().backward()
"""


@cache
def bf16_problem() -> str | None:
    """None if a bfloat16 layer runs on this CPU (tried in a process of its own), else what to do about it."""
    done = subprocess.run([sys.executable, "-c", _PROBE], capture_output=True)
    if done.returncode == 0:
        return None
    return (
        "torch's bfloat16 layers do not run on this CPU (a trial process ended with code "
        f"{done.returncode}); use 'fp32', or set ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 in the environment"
    )
