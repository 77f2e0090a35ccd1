"""The kernels' sources for processors that are not x86: they compile for aarch64 (NEON registers of 16 bytes)."""

from __future__ import annotations

import runpy
import shutil
import subprocess
from pathlib import Path

import pytest
import setuptools

ROOT = Path(__file__).parent.parent.parent
COMPILER = "aarch64-linux-gnu-g++"


@pytest.mark.skipif(shutil.which(COMPILER) is None, reason=f"{COMPILER} is not installed")
def test_every_source_compiles_for_aarch64(monkeypatch):
    monkeypatch.setattr(setuptools, "setup", lambda **options: None)
    built = runpy.run_path(str(ROOT / "setup.py"))
    macros = {source: f"-D{macro}={macro.lower()}_base" for source, macro in built["PER_INSTRUCTION_SET"].items()}
    for source in (*built["ONCE"], *built["PER_INSTRUCTION_SET"]):
        folders = [f"-I{ROOT / Path(source).parent}", f"-I{ROOT / 'csrc/common'}"]
        flags = ["-std=c++17", "-fsyntax-only", *folders, *filter(None, [macros.get(source)])]
        done = subprocess.run([COMPILER, *flags, str(ROOT / source)], capture_output=True, text=True)
        assert done.returncode == 0, f"{source}: {done.stderr}"
