"""Builds the source distribution and one wheel per platform, on any machine, with zig's C++ compiler.

    pip install ziglang setuptools && python tools/build_wheels.py [--out dist] [PLATFORM ...]

The kernels are plain C++ behind a C interface, called through ctypes: a wheel serves every Python and every torch of
its platform. Each wheel is opened again: its library must be for the processor and system of its name, need no library
but the system's, and contain the name of every function that the Python code calls. That shows that it was built;
tools/smoke_test.py shows that an installed one runs: that of Linux on x86-64 (torch 2.13) and, in an emulator (qemu),
that of Linux on aarch64 (torch 2.9.1). Those of macOS and Windows were never run. None of these has been released.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
LIBRARY = "steadyspike/kernels/_native.so"


class Platform(NamedTuple):
    """The target as zig names it, and how a library for it begins: (offset, bytes) pairs."""

    target: str
    begins: tuple[tuple[int, bytes], ...]


# glibc 2.28 is the oldest that torch's own wheels support.
PLATFORMS = {
    "manylinux_2_28_x86_64": Platform("x86_64-linux-gnu.2.28", ((0, b"\x7fELF\x02"), (18, b"\x3e\x00"))),
    "manylinux_2_28_aarch64": Platform("aarch64-linux-gnu.2.28", ((0, b"\x7fELF\x02"), (18, b"\xb7\x00"))),
    "macosx_11_0_arm64": Platform("aarch64-macos.11.0", ((0, b"\xcf\xfa\xed\xfe\x0c\x00\x00\x01"),)),
    "win_amd64": Platform("x86_64-windows-gnu", ((0, b"MZ"),)),
}


def build(platform: str, out: Path) -> Path:
    """Builds the wheel of one platform into ``out``."""
    compiler = f"{sys.executable} -m ziglang c++ -target {PLATFORMS[platform].target}"
    # -s: no symbols for debuggers. CFLAGS are the machine's own otherwise, which need not suit the target.
    environment = {"CC": compiler, "CXX": compiler, "CFLAGS": "", "LDFLAGS": ""}
    environment |= dict.fromkeys(("LDSHARED", "LDCXXSHARED"), f"{compiler} -shared -s")
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "setup.py", "-q", "build", "--build-base", folder]
        command += ["bdist_wheel", "--plat-name", platform, "--bdist-dir", f"{folder}/wheel", "--dist-dir", str(out)]
        subprocess.run(command, cwd=ROOT, env=os.environ | environment, check=True)
    (wheel,) = out.glob(f"steadyspike-*-py3-none-{platform}.whl")
    return wheel


def functions_called() -> set[str]:
    """Names of the library's functions in the Python code."""
    sources = (ROOT / "src").rglob("*.py")
    texts = [path.read_text() for path in sources if "kernels" in path.parts or "deploy" in path.parts]
    exported = "\n".join(path.read_text() for path in (ROOT / "csrc").rglob("*") if path.suffix in (".h", ".cpp"))
    names = {name for text in texts for name in re.findall(r"\bsteadyspike_[a-z0-9_]+\b", text)}
    return {name for name in names if re.search(rf"\b{name}\(", exported)}


def problems(wheel: Path, platform: str) -> list[str]:
    """What is wrong with a wheel; empty if nothing is."""
    with zipfile.ZipFile(wheel) as archive:
        if LIBRARY not in archive.namelist():
            return [f"{LIBRARY} is missing: it was not compiled"]
        data = archive.read(LIBRARY)
    faults = [f"begins with {data[at : at + len(start)]!r}, not {start!r}"
             for at, start in PLATFORMS[platform].begins if data[at : at + len(start)] != start]  # fmt: skip
    faults += [f"lacks {name}" for name in sorted(functions_called()) if name.encode() not in data]
    if "x86_64" in PLATFORMS[platform].target:
        # setup.py builds the baseline alone if the compiler cannot build the others.
        faults += [f"lacks the {name} kernels" for name in ("avx2", "avx512") if name.encode() not in data]
    faults += [f"needs {name}" for name in ("libstdc++", "libgomp", "libc++.so", "libomp") if name.encode() in data]
    glibc = {tuple(map(int, v.split(b"."))) for v in re.findall(rb"GLIBC_(\d+\.\d+(?:\.\d+)?)", data)}
    return faults + [f"needs glibc {'.'.join(map(str, version))}" for version in sorted(glibc) if version > (2, 28)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("platforms", nargs="*", metavar="PLATFORM", help=f"default: {', '.join(PLATFORMS)} and sdist")
    parser.add_argument("--out", type=Path, default=ROOT / "dist")
    options = parser.parse_args()
    if unknown := set(options.platforms) - {*PLATFORMS, "sdist"}:
        parser.error(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(PLATFORMS)} and sdist")
    out = options.out.resolve()
    wrong = 0
    for platform in options.platforms or [*PLATFORMS, "sdist"]:
        if platform == "sdist":
            subprocess.run([sys.executable, "setup.py", "-q", "sdist", "--dist-dir", str(out)], cwd=ROOT, check=True)
            continue
        wheel = build(platform, out)
        faults = problems(wheel, platform)
        wrong += len(faults)
        print(f"{wheel.name}: {wheel.stat().st_size / 2**20:.1f} MB; {'; '.join(faults) or 'built'}", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
