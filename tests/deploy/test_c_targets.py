"""The exported C file on other processors: aarch64 and ARMv7 under qemu-user, wasm32 in node; zig's clang."""

from __future__ import annotations

import importlib.util
import shutil
import sys

import pytest

from steadyspike.deploy import fold
from tests.deploy.c_program import CProgram, differing
from tests.deploy.trained import trained

WASI = """
const { readFileSync } = require("fs"), { WASI } = require("wasi");
const wasi = new WASI({ version: "preview1", args: process.argv.slice(2), returnOnExit: false });
const code = readFileSync(process.argv[2]);
WebAssembly.instantiate(code, wasi.getImportObject()).then(({ instance }) => wasi.start(instance));
"""


def zig():
    """The command of zig's C compiler, from the path or from the package ziglang; None if there is none."""
    if shutil.which("zig"):
        return ["zig", "cc"]
    return [sys.executable, "-m", "ziglang", "cc"] if importlib.util.find_spec("ziglang") else None


def debian(compiler, emulator, root):
    """Compiler and emulator of Debian's cross packages; a reason to skip if one of them is absent."""
    for name in (compiler, emulator):
        if shutil.which(name) is None:
            pytest.skip(f"{name} is not installed")
    return [compiler], [emulator, "-L", root]


def target(name, folder):
    """The compiler's command and what runs its programs."""
    if name == "aarch64":
        return debian("aarch64-linux-gnu-gcc", "qemu-aarch64", "/usr/aarch64-linux-gnu")
    if name == "armv7":
        return debian("arm-linux-gnueabihf-gcc", "qemu-arm", "/usr/arm-linux-gnueabihf")
    if zig() is None:
        pytest.skip("zig is not installed (pip install ziglang)")
    if name == "clang":
        return zig(), []
    if shutil.which("node") is None:
        pytest.skip("node is not installed")
    (folder / "run.js").write_text(WASI)
    return [*zig(), "-target", "wasm32-wasi"], ["node", "--no-warnings", str(folder / "run.js")]


@pytest.mark.parametrize("integer", [True, False], ids=["int8", "float32"])
@pytest.mark.parametrize("name", ["aarch64", "armv7", "wasm32", "clang"])
def test_other_processors_emit_the_same_spikes(name, integer, tmp_path):
    command, before = target(name, tmp_path)
    model, x = trained("resnet19_tiny")
    c = CProgram(fold(model, x), tmp_path, integer, command, ["-O2"], before)
    wrong, fired, score = differing(c, x, 4, integer)
    assert fired > 0 and wrong == 0
    assert score < 1e-6
