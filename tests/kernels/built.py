"""The C++ extension, for tests that need it."""

from __future__ import annotations

import pytest
import torch

from steadyspike.kernels.conv.rule import Costs
from steadyspike.kernels.scan.cpu.backend import CpuBackend

MISSING = CpuBackend().why_not(torch.empty(0))
needs_kernel = pytest.mark.skipif(MISSING is not None, reason=str(MISSING))
ISAS = range(len(CpuBackend().instruction_sets) if MISSING is None else 0)
ALWAYS = Costs(1e3, 1e3, 1e3, 0, 0, 0, 0, 0, 0, 0, 0, 0)  # dense costs more than anything: all layers run by events
