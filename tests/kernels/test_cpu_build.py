"""The build of the C++ kernel: optional, and complete if there is a compiler."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from steadyspike.kernels.scan.cpu.backend import CpuBackend

ROOT = Path(__file__).parents[2]


def build(target: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "setup.py",
        "build_ext",
        "--build-lib",
        str(target),
        "--build-temp",
        str(target / "temp"),
    ]
    return subprocess.run(
        command, cwd=ROOT, env=os.environ | environment, capture_output=True, text=True, check=False, timeout=300
    )


def test_without_a_compiler_the_build_warns_and_succeeds(tmp_path: Path) -> None:
    result = build(tmp_path, CC="/nonexistent/cc", CXX="/nonexistent/c++")
    assert result.returncode == 0, result.stderr
    assert "the CPU kernel was not built" in result.stderr and "PyTorch reference" in result.stderr
    assert not list(tmp_path.rglob("*.so"))


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler")
def test_with_a_compiler_the_library_loads(tmp_path: Path) -> None:
    result = build(tmp_path)
    assert result.returncode == 0 and "not built" not in result.stderr, result.stderr
    (library,) = tmp_path.rglob("_native.so")
    assert CpuBackend(library).why_not(torch.empty(1)) is None
