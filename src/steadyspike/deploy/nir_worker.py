"""Reads a NIR file (HDF5) in a separate process and writes its content to standard output as plain data.

HDF5 is a large C library that damaged files can crash or keep busy for ever. `nir_file` starts this program with limits
of memory and time. It imports only h5py and NumPy, and follows no link out of the file. Its output is one line of JSON
(the tree, with the position of each array), followed by the bytes of the arrays.

    python -I nir_worker.py FILE BYTES SECONDS, with the import path as JSON on standard input
"""

from __future__ import annotations

import json
import sys
from typing import Any

MOST_OBJECTS, MOST_DEPTH, MOST_TEXT = 200_000, 16, 1 << 20


class Refused(Exception):
    """The file is not valid; the message has one line."""


def limit(memory: int, seconds: int) -> None:
    """Limits this process: allocations beyond ``memory`` more bytes fail, and ``seconds`` of computing end it."""
    try:
        import resource
    except ImportError:  # not available on this system; the parent still ends the process after its time limit
        return
    try:
        with open("/proc/self/statm") as file:
            held = int(file.read().split()[0]) * resource.getpagesize()
    except OSError:
        held = 1 << 30
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (held + 2 * memory + (64 << 20),) * 2)
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))


class Reader:
    def __init__(self, memory: int) -> None:
        self.left, self.objects = memory, 0
        self.seen: set[int] = set()
        self.arrays: list[Any] = []
        self.written = 0

    def group(self, group: Any, path: str, depth: int = 0) -> dict[str, Any]:
        import h5py

        if depth > MOST_DEPTH:
            raise Refused(f"{path} is nested too deeply")
        tree: dict[str, Any] = {}
        for name in group:
            self.objects += 1
            if self.objects > MOST_OBJECTS:
                raise Refused("it has too many parts")
            if not isinstance(group.get(name, getlink=True), h5py.HardLink):
                raise Refused(f"{path}/{name} is a link to another location")
            item = group[name]
            mark = h5py.h5o.get_info(item.id).addr
            if mark in self.seen:
                raise Refused(f"{path}/{name} appears twice")
            self.seen.add(mark)
            if isinstance(item, h5py.Group):
                tree[name] = self.group(item, f"{path}/{name}", depth + 1)
            elif isinstance(item, h5py.Dataset):
                tree[name] = self.leaf(item, f"{path}/{name}")
            else:
                raise Refused(f"{path}/{name} is neither a group nor data")
        return tree

    def leaf(self, item: Any, path: str) -> dict[str, Any]:
        import h5py
        import numpy as np

        if item.external or item.is_virtual:
            raise Refused(f"{path} has its data in another file")
        text = h5py.check_string_dtype(item.dtype) is not None
        if item.shape is None or len(item.shape) > 8 or not (text or item.dtype.kind in "fiub"):
            raise Refused(f"{path} is neither numbers nor text")
        size = 1
        for n in item.shape:
            size *= int(n)
        self.left -= size * max(item.dtype.itemsize, 1)
        if self.left < 0:
            raise Refused(f"{path} is larger than a file of this size may contain")
        if text:
            return {"text": texts(np.asarray(item.asstr(errors="strict")[()]).tolist(), path)}
        array = np.asarray(item[()], order="C")  # ascontiguousarray would give a number an axis
        array = array.astype(array.dtype.newbyteorder("<"))
        self.arrays.append(array)
        start, self.written = self.written, self.written + array.nbytes
        return {"array": [array.dtype.str, list(array.shape), start]}


def texts(thing: Any, path: str) -> Any:
    """Returns nested lists of texts, none of them long."""
    if isinstance(thing, list):
        return [texts(item, path) for item in thing]
    if not isinstance(thing, str) or len(thing) > MOST_TEXT:
        raise Refused(f"{path} is not a text")
    return thing


def main() -> None:
    path, memory, seconds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    sys.path[:] = json.load(sys.stdin)
    import h5py
    import numpy  # noqa: F401 (before the limits)

    limit(memory, seconds)
    out, reader = sys.stdout.buffer, Reader(memory)
    try:
        with h5py.File(path, "r") as file:
            if not isinstance(file.get("node"), h5py.Group):
                raise Refused("it has no NIR graph")
            answer: dict[str, Any] = {"tree": reader.group(file["node"], "node")}
    except Refused as error:
        answer = {"refused": str(error)}
    except MemoryError:
        answer = {"refused": "it needs more memory than a file of this size may take"}
    except Exception as error:  # h5py raises many kinds of errors, with the library's text
        answer = {"refused": " ".join(str(error).split())[:200] or type(error).__name__}
    out.write(json.dumps(answer).encode() + b"\n")
    if "tree" in answer:
        for array in reader.arrays:
            out.write(array.tobytes())
    out.flush()


if __name__ == "__main__":
    main()
