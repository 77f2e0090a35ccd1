"""Builds the optional CPU kernels: csrc/ into one plain shared library inside the package.

The library has a C ABI and includes neither Python's nor torch's headers: it needs a C++17 compiler and nothing else.
Without one the install succeeds all the same, and the library runs on the PyTorch reference.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

# No FMA contraction: the kernel rounds where the reference rounds, so that both see the same spikes.
COMMON = ["-std=c++17", "-O2", "-ftree-vectorize", "-g0", "-fvisibility=hidden", "-ffp-contract=off",
          "-fno-math-errno", "-fno-trapping-math"]  # fmt: skip
# If the compiler has them (GCC): vectorise at -O2 as freely as at -O3, which takes twice as long to compile; and no
# jump threading, which would turn the three values of a spike (0, 1, NaN) into branches inside the vector loop.
IF_KNOWN = ["-fvect-cost-model=dynamic", "-fno-thread-jumps"]
AVX512 = ["-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mprefer-vector-width=512"]
# One object per instruction set, chosen at run time; the library itself runs on any CPU of the platform.
INSTRUCTION_SETS = {"base": [], "avx2": ["-mavx2", "-mfma"], "avx512": AVX512}

# Sources compiled for each instruction set, with the macro that names the symbol they define; and those compiled once.
PER_INSTRUCTION_SET = {
    "csrc/scan/chunk.cpp": "STEADYSPIKE_CHUNKS",
    "csrc/conv/conv_loops.cpp": "STEADYSPIKE_CONV",
    "csrc/deploy/deployed_loops.cpp": "STEADYSPIKE_LAYER",
}
ONCE = [
    "csrc/common/isa.cpp",
    "csrc/common/threads.cpp",
    "csrc/scan/lif.cpp",
    "csrc/neuron/neuron.cpp",
    "csrc/norm/input_gradient.cpp",
    "csrc/spikes/bits.cpp",
    "csrc/conv/conv.cpp",
    "csrc/deploy/deployed.cpp",
]


class BuildKernel(build_ext):
    """Compiles the sources above into one library; a failure is a warning, not an error."""

    def get_ext_filename(self, fullname: str) -> str:
        # One name on every system, Windows too: it is loaded by its path, and a cross build needs no table of names.
        return os.path.join(*fullname.split(".")) + ".so"

    def build_extension(self, ext: Extension) -> None:
        # The compiler's target counts, not this machine: CXX may be a cross compiler (tools/build_wheels.py).
        x86 = self._compiles("#ifndef __x86_64__\n#error\n#endif\n")
        errors = []
        for with_sets in dict.fromkeys((x86, False)):
            try:
                self._build(ext, with_sets)
                return
            except Exception as error:  # whatever a tool chain can come up with
                errors.append(f"  instruction sets {with_sets}: {error}")
        self.warn(
            "steadyspike: the CPU kernel was not built (is there a C++17 compiler, GCC or Clang?). "
            "The library works without it, on the slower PyTorch reference. Attempts:\n" + "\n".join(errors)
        )

    def _compiles(self, text: str, *flags: str) -> bool:
        probe = Path(self.build_temp, "probe.cpp")
        probe.parent.mkdir(parents=True, exist_ok=True)
        probe.write_text(text)
        try:
            self.compiler.compile([str(probe)], output_dir=self.build_temp, extra_postargs=list(flags))
        except Exception:
            return False
        return True

    def _build(self, ext: Extension, instruction_sets: bool) -> None:
        empty = "int probe() { return 0; }\n"
        flags = COMMON + [flag for flag in IF_KNOWN if self._compiles(empty, flag, "-Werror")]
        flags += ["-fPIC"] if self._compiles(empty, "-fPIC") else []  # an error for Windows, which does not need it
        names = list(INSTRUCTION_SETS) if instruction_sets else ["base"]
        x86 = [("STEADYSPIKE_X86", "1")] if instruction_sets else []
        jobs = [(source, name, INSTRUCTION_SETS[name], [(macro, f"{macro.lower()}_{name}")])
                for name in reversed(names) for source, macro in PER_INSTRUCTION_SET.items()]  # fmt: skip
        jobs += [(source, "once", [], x86) for source in ONCE]

        def compile_one(job: tuple) -> list[str]:
            source, name, extra, macros = job
            return self.compiler.compile(
                [source], output_dir=os.path.join(self.build_temp, name), macros=macros,
                include_dirs=[os.path.dirname(source), "csrc/common"], extra_postargs=flags + extra,
                depends=ext.depends,
            )  # fmt: skip

        with ThreadPoolExecutor(max_workers=os.cpu_count() or 1) as pool:
            objects = [obj for objs in pool.map(compile_one, jobs) for obj in objs]
        target = self.get_ext_fullpath(ext.name)
        self.compiler.link_shared_object(objects, target, extra_postargs=["-pthread"], target_lang="c++")

    def copy_extensions_to_source(self) -> None:
        # For editable installs; an extension that was not built has nothing to copy.
        self.extensions = [e for e in self.extensions if Path(self.build_lib, self.get_ext_filename(e.name)).exists()]
        super().copy_extensions_to_source()

    def get_outputs(self) -> list[str]:
        return [path for path in super().get_outputs() if os.path.exists(path)]


class PlainWheel(bdist_wheel):
    """A wheel for every Python of a platform: the library is called through ctypes."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


kernel = Extension(
    "steadyspike.kernels._native",
    sources=[*ONCE, *PER_INSTRUCTION_SET],
    depends=sorted(str(p) for p in Path("csrc").rglob("*.h")),
    language="c++",
)
setup(ext_modules=[kernel], cmdclass={"build_ext": BuildKernel, "bdist_wheel": PlainWheel})
