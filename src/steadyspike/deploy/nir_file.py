"""Reads NIR files through `nir_worker`, a separate process with limits, so that a file cannot crash this process."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from steadyspike.deploy.errors import DamagedFile

MIB = 1 << 20
MOST = 4096 * MIB
PACKED = 100  # bytes of content per byte of the file, in addition to the first 256 MiB


def read_nir_file(path: str | os.PathLike[str]) -> Any:
    """Returns the `nir.NIRGraph` of a file. Damaged and hostile files raise a `DamagedFile` of one line.

    Limits: 256 MiB plus 100 bytes per byte of the file, at most 4 GiB; 20 seconds plus one per 4 MiB of the file. Links
    to other files, external data and virtual data raise an error.
    """
    source = Path(path)
    if not source.is_file():
        raise FileNotFoundError(f"{source} is not a file")
    size = source.stat().st_size
    memory, seconds = min(MOST, 256 * MIB + PACKED * size), 20 + size // (4 * MIB)
    return graph_of_tree(_tree(source, memory, seconds), source.name)


def graph_of_tree(tree: dict[str, Any], name: str) -> Any:
    """Returns the `nir.NIRGraph` of a file's content."""
    import nir

    try:
        return nir.dict2NIRNode({**tree, "type_check": False})
    except Exception as error:  # nir checks with assertions and lookups
        what = " ".join(str(error).split())[:160] or "the parts of a node do not match"
        raise DamagedFile(f"{name} is not a readable NIR file: {type(error).__name__}: {what}") from None


def _tree(source: Path, memory: int, seconds: int) -> dict[str, Any]:
    """Returns the file's content as nested dictionaries of arrays and texts."""
    # No plugins: HDF5 does not search the disk for missing filters.
    environment = {**os.environ, "HDF5_PLUGIN_PRELOAD": "::", "HDF5_USE_FILE_LOCKING": "FALSE", "OMP_NUM_THREADS": "1"}
    worker = Path(__file__).with_name("nir_worker.py")
    paths = json.dumps([os.path.abspath(folder) for folder in sys.path if folder]).encode()
    command = [sys.executable, "-I", str(worker), str(source.resolve()), str(memory), str(seconds)]
    try:
        done = subprocess.run(
            command, input=paths, capture_output=True, timeout=seconds, env=environment, check=False
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise DamagedFile(f"{source.name} is not a readable NIR file: it was not read in {seconds} seconds") from None
    header, _, content = done.stdout.partition(b"\n")
    if done.returncode != 0 or not header:
        raise DamagedFile(f"{source.name} is not a readable NIR file: HDF5 cannot read it")
    answer = json.loads(header)
    if "refused" in answer:
        raise DamagedFile(f"{source.name} is not a readable NIR file: {answer['refused']}")
    tree = restored(answer["tree"], content)
    assert isinstance(tree, dict)
    return tree


def restored(item: dict[str, Any], content: bytes) -> Any:
    if item.keys() == {"text"} and not isinstance(item["text"], dict):
        return _plain(item["text"])
    if item.keys() == {"array"} and isinstance(item["array"], list):
        kind, shape, start = item["array"]
        array = np.frombuffer(content, np.dtype(kind), math.prod(shape), start).reshape(shape).copy()
        return array[()] if not shape else array
    return {name: restored(part, content) for name, part in item.items()}


def _plain(text: Any) -> Any:
    """Converts texts to the form that `nir` expects: a single one as str, several as an array of bytes."""
    return text if isinstance(text, str) else np.array([[t.encode() for t in row] for row in text], dtype=object)
