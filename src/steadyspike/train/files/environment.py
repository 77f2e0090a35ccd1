"""The environment of a run: versions, hardware, the commit of the code, and the memory that it uses."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

_PACKAGES = ("steadyspike", "torch", "numpy", "triton", "safetensors")


def environment() -> dict[str, Any]:
    """The environment of a run: versions, hardware, code."""
    import torch

    versions: dict[str, str | None] = {}
    for package in _PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = None
    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": versions,
        "cpu": _cpu_name(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "gpus": gpus,
        "commit": commit(),
        "command": sys.argv,
    }


def _cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor()


def commit() -> str | None:
    """Returns the commit of the library's own checkout (with +changes if files differ from it), if it is one."""
    here = Path(__file__).parent

    def git(*arguments: str) -> str | None:
        # Without optional locks, because `status` would write the index, and leave its lock file if the disk is full.
        command = ["git", "--no-optional-locks", "-C", str(here), *arguments]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=10)
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    top, head = git("rev-parse", "--show-toplevel"), git("rev-parse", "HEAD")
    if top is None or head is None or not (Path(top) / "src" / "steadyspike").is_dir():
        return None
    return head + ("+changes" if git("status", "--porcelain", "--untracked-files=no") else "")


def size(count: float) -> str:
    """Formats a number of bytes: ``"84 MB"``, ``"1.5 GB"``."""
    return f"{count / 2**30:.1f} GB" if count >= 2**30 else f"{count / 2**20:.0f} MB"


def memory_held() -> tuple[int, int]:
    """Returns (bytes of memory that this process uses now, the most that it has used so far).

    Both are zero if the system does not report them.
    """
    try:
        fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":" in line)
        return int(fields["VmRSS"].split()[0]) * 1024, int(fields["VmHWM"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        pass
    try:
        import resource
    except ImportError:
        return 0, 0
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return most, most


def most_memory() -> dict[str, int]:
    """Returns the most bytes that this process has used so far, and on its GPU, if the system reports it."""
    import torch

    gpu = torch.cuda.max_memory_reserved() if torch.cuda.is_available() else 0
    return {name: count for name, count in (("process", memory_held()[1]), ("GPU", gpu)) if count}
