"""The findings of `steadyspike doctor`: versions, devices, kernels and data. It needs only torch and numpy."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from steadyspike.extras import EXTRAS

_MARKS = {True: "yes", False: "no ", None: " - "}


class Row(NamedTuple):
    """ok: True: available; False: missing, but required; None: missing, and optional"""

    name: str
    text: str
    ok: bool | None = True


class Section(NamedTuple):
    title: str
    rows: list[Row]
    note: str = ""


def sections(data_dir: Path | None = None) -> Iterator[Section]:
    """Yields all findings, one section at a time."""
    yield Section("versions", list(_versions()))
    yield Section("devices", list(_devices()))
    yield Section("kernels", list(_kernels()))
    yield _data(data_dir)


def print_plainly() -> None:
    """Prints the findings without any package that `EXTRAS` names."""
    for section in sections():
        print(section.title)
        for row in section.rows:
            print(f"  {_MARKS[row.ok]}  {row.name:<15} {row.text}")


def _versions() -> Iterator[Row]:
    import importlib.util
    from importlib.metadata import version

    import torch

    import steadyspike

    yield Row("steadyspike", f"{steadyspike.__version__}, python {platform.python_version()}, {platform.platform()}")
    yield Row("torch", f"{torch.__version__}, {torch.get_num_threads()} threads")
    for module, extra in EXTRAS.items():
        if module == "tomli":  # a part of Python from 3.11 on
            continue
        package = {"PIL": "Pillow", "faster_coco_eval": "faster-coco-eval"}.get(module, module)
        if importlib.util.find_spec(module) is not None:
            yield Row(package, version(package))
        else:
            yield Row(package, f"install steadyspike[{extra}]", None)


def _devices() -> Iterator[Row]:
    import torch

    yield Row("cpu", f"{os.cpu_count()} cores, {torch.backends.cpu.get_cpu_capability()}")
    if (limit := platform_limit(sys.platform, platform.machine())) is not None:
        yield Row("platform", limit, None)
    if torch.backends.mps.is_available():
        yield Row("mps", "train.accelerator = 'mps': fp32, neurons on the PyTorch reference, not tried yet", None)
    if not torch.cuda.is_available():
        why = "this torch is built without CUDA" if torch.version.cuda is None else "no driver or no GPU"
        yield Row("cuda", why, None)
        return
    for i in range(torch.cuda.device_count()):
        p = torch.cuda.get_device_properties(i)
        yield Row(f"cuda:{i}", f"{p.name}, {p.total_memory / 2**30:.0f} GB")


def platform_limit(system: str, machine: str) -> str | None:
    """Returns what this library lacks on the platform; None on Linux x86_64, on which everything is tested."""
    if system == "win32":
        return "Windows: kernels from the wheel or with GCC or Clang; compiled, never run here; no Triton"
    if system == "darwin":
        return "macOS: kernels with 16-byte registers; compiled, never run here; no Triton"
    if machine.lower() not in ("x86_64", "amd64"):
        return f"{machine}: kernels with 16-byte registers; tried on aarch64 in an emulator only (qemu)"
    return None


def _kernels() -> Iterator[Row]:
    import torch

    from steadyspike.core.surrogate import SURROGATES
    from steadyspike.kernels.scan.choose import backend_report, choose_backend

    for device in ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",):
        x = torch.empty(0, device=device)
        active = choose_backend("auto", x)
        for name, status in backend_report(x).items():
            note = "active" if name == active else status
            yield Row(f"{name} ({device})", note, status == "available" or None)
    names = ", ".join(SURROGATES)
    yield Row("surrogates", f"compiled: {names}; any other, and every subclass, runs on the reference")
    yield Row("spike conv (cpu)", *_spike_convolution())


def _spike_convolution() -> tuple[str, bool | None]:
    """Returns whether the convolution of spikes can run here, and when torch's dense layers are used instead."""
    from steadyspike.kernels.conv.call import conv_library, instruction_set

    library = conv_library()
    if isinstance(library, str):
        return library, None
    aside = "torch's dense layers under torch.compile, autocast, torch.func and export"
    return f"float32, {instruction_set()}; {aside}", True


def _data(data_dir: Path | None) -> Section:
    from steadyspike.data.data_folders import DataFolders
    from steadyspike.data.dataset_catalogue import data_sets
    from steadyspike.data.errors import DataError

    try:
        folders = DataFolders.of(data_dir, None, download=False)
    except DataError as error:
        return Section("data", [Row("data folder", str(error), False)])
    rows = []
    for name, entry in data_sets().items():
        if not entry.own_folder:
            folder = entry.find(folders)
            rows.append(Row(name, str(folder) if folder else "not found", True if folder else None))
    return Section("data", rows, f"looked in {folders.data_dir}")
