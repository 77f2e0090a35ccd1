"""Set before torch first runs: some virtual machines report AMX but kill a process that uses it in bfloat16."""

import os

os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
