"""Freed memory stays in the process once it is asked for."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

SCRIPT = """
import resource, torch
import steadyspike as ss
if KEEP:
    assert ss.keep_freed_memory()
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.ones(16 << 20)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
torch.ones(16 << 20)
print(min(faults() for _ in range(20)))  # the heap takes a few rounds to settle
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="not glibc: there is nothing to tell it")
def test_a_tensor_of_64_mib_gets_the_pages_of_the_one_before() -> None:
    def fewest_faults(keep: bool) -> int:
        script = SCRIPT.replace("KEEP", str(keep))
        return int(subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout)

    assert fewest_faults(True) < 16  # of 16,384 small or 32 huge pages
    assert fewest_faults(False) >= 32
