"""The best instruction set that may run is the CPU's, or the one that STEADYSPIKE_CPU_CAPABILITY names."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from steadyspike.kernels.library import CAPABILITIES, CAPABILITY
from steadyspike.kernels.scan.cpu.backend import CpuBackend

SETS = CpuBackend().instruction_sets
ASK = """
import torch, steadyspike as ss
from steadyspike.kernels.conv.call import instruction_set
from steadyspike.kernels.scan.cpu.backend import CpuBackend
print(*CpuBackend().instruction_sets, instruction_set())
torch.manual_seed(0)
print(ss.LIF()(torch.randn(4, 3, 1000)).double().sum().item())
"""


def asked(capability: str) -> list[str]:
    """What a new process with this capability prints."""
    environment = {**os.environ, CAPABILITY: capability}
    return subprocess.run(
        [sys.executable, "-c", ASK], env=environment, capture_output=True, text=True, check=True
    ).stdout.splitlines()


def test_the_names_are_those_of_the_library() -> None:
    assert list(CAPABILITIES[: len(SETS)]) == SETS


def test_nothing_better_than_the_named_set_runs() -> None:
    sums = set()
    for count, name in enumerate(SETS, 1):
        sets, total = asked(name)
        assert sets.split() == [*SETS[:count], name]
        sums.add(total)
    assert len(sums) == 1  # the same spikes on each


def test_an_unknown_name_is_the_reason_why_no_kernel_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CAPABILITY, "avx3")
    with pytest.raises(RuntimeError, match="'avx3'; known: base, avx2, avx512"):
        _ = CpuBackend().instruction_sets
