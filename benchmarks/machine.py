"""What the figures were measured on."""

from __future__ import annotations

import os
import platform
import subprocess
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from benchmarks.contenders import versions

from steadyspike.kernels.library import CAPABILITY
from steadyspike.kernels.scan.cpu.backend import CpuBackend

ROOT = Path(__file__).parent.parent


def describe(threads: int) -> dict[str, Any]:
    return {
        "cpu": _cpu(),
        "instruction_set": CpuBackend().instruction_sets[-1] + (" by choice" if CAPABILITY in os.environ else ""),
        "cores": os.cpu_count(),
        "threads": threads,
        "load": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "versions": versions(),
        "commit": _git("rev-parse", "--short", "HEAD") + ("+" if _git("status", "--porcelain", "src", "csrc") else ""),
        "time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
    }


def _cpu() -> str:
    """Returns the name of the CPU with its family, because the name alone is that of several generations."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    values = dict(reversed([map(str.strip, line.split(":", 1)) for line in lines if ":" in line]))
    if "model name" not in values:
        return platform.processor()
    return values["model name"] + (f" (family {values['cpu family']})" if "cpu family" in values else "")


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", "--no-optional-locks", *arguments], cwd=ROOT, capture_output=True, text=True)
    return done.stdout.strip()
