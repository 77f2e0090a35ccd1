"""Folded networks on disk: one safetensors file with the constants, whose metadata describes the graph.

No code is needed to load it, and none is run: the description is JSON that names operations of
`steadyspike.deploy.ops.OPS`. The file contains a digest of description and constants, so a damaged file is detected.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from steadyspike.deploy.errors import DamagedFile, missing_package
from steadyspike.deploy.network import FoldedNetwork, refuse_unfolded
from steadyspike.deploy.schema import MOST_STEPS, Invalid, graph_of
from steadyspike.deploy.written import write_file

FORMAT = "steadyspike folded network 1"
SUFFIX = ".safetensors"


def describe(network: FoldedNetwork) -> dict[str, Any]:
    """Returns the graph in a form for JSON; constants are referred to by name."""
    graph = network.graph
    nodes = [
        {
            "name": node.name,
            "op": node.op,
            "inputs": list(node.inputs),
            "shape": list(node.shape),
            "timed": node.timed,
            "options": node.options,
            "tensors": sorted(node.tensors),
        }
        for node in graph
    ]
    return {"format": FORMAT, "timesteps": graph.timesteps, "output": graph.output, "nodes": nodes}


def _digest(description: str, tensors: dict[str, Tensor]) -> str:
    digest = hashlib.blake2b(description.encode(), digest_size=32)
    for key in sorted(tensors):
        t = tensors[key].contiguous()
        digest.update(f"|{key}|{t.dtype}|{tuple(t.shape)}|".encode())
        digest.update(t.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def save(network: FoldedNetwork, path: str | os.PathLike[str], extra: dict[str, Any] | None = None) -> Path:
    """Writes ``network`` to ``path`` (``.safetensors``) atomically: after a crash the old or the new file exists.

    extra: JSON values to store with it (class names, how images are scaled, ...); `load_extra` reads them
    """
    refuse_unfolded(network)
    missing_package("safetensors", "export")
    from safetensors.torch import save as to_bytes

    target = Path(path)
    if target.suffix != SUFFIX:
        raise ValueError(f"a folded network is saved as a {SUFFIX} file, got {target.name!r}")
    tensors = {
        f"{name}|{what}": tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
        for name in network.graph.nodes
        for what, tensor in network.node(name).tensors.items()
    }
    description = json.dumps({**describe(network), "extra": extra or {}}, sort_keys=True)
    metadata = {"steadyspike": description, "digest": _digest(description, tensors)}
    if network.graph.timesteps > MOST_STEPS:
        raise ValueError(f"a folded file holds at most {MOST_STEPS} time steps, got {network.graph.timesteps}")
    return write_file(target, to_bytes(tensors, metadata))


def _read(path: str | os.PathLike[str]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    missing_package("safetensors", "export")
    from safetensors import SafetensorError, safe_open

    name = Path(path).name
    try:
        with safe_open(path, "pt") as file:
            metadata = file.metadata() or {}
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    except FileNotFoundError:
        raise
    except (
        SafetensorError,
        OSError,
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        RuntimeError,
        MemoryError,
    ) as error:
        what = " ".join(str(error).split())[:160]
        raise DamagedFile(f"{name} is not a readable safetensors file: {what}") from None
    description = metadata.get("steadyspike")
    if description is None or "digest" not in metadata:
        raise DamagedFile(f"{name} is a safetensors file, but not of a folded network")
    try:
        digest = _digest(description, tensors)
    except (RuntimeError, TypeError, ValueError):  # a dtype that no folded network has
        digest = ""
    if metadata.get("digest") != digest:
        raise DamagedFile(f"{name} is damaged: its content does not match its digest; fold the network again")
    try:
        content = json.loads(description)
    except (ValueError, RecursionError):
        raise DamagedFile(f"{name} is damaged: its description is not JSON") from None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        form = str(content.get("format") if isinstance(content, dict) else type(content).__name__)[:60]
        raise DamagedFile(f"{name} has the format {form!r}; this version reads {FORMAT!r}")
    if not isinstance(content.get("extra", {}), dict):
        raise DamagedFile(f"{name} is damaged: its extra facts are not a table")
    return content, tensors


def load(path: str | os.PathLike[str]) -> FoldedNetwork:
    """Loads the network of a file that `save` wrote; any other file raises a `DamagedFile` with the reason.

    The whole description is checked (`deploy.schema`) before anything runs.
    """
    content, tensors = _read(path)
    try:
        graph = graph_of(content, tensors)
    except Invalid as error:
        raise DamagedFile(f"{Path(path).name} is damaged: {error}") from None
    return FoldedNetwork(graph).train(False)


def load_extra(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Returns the ``extra`` that was given to `save`."""
    return dict(_read(path)[0].get("extra", {}))
