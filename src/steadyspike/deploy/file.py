"""Folded networks on disk: one safetensors file with the constants, whose metadata describes the graph.

No code is needed to load it, and none is run: the description is JSON that names operations of
`steadyspike.deploy.ops.OPS`. A digest over description and constants is part of the file, so a damaged file is refused.
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
from steadyspike.deploy.graph import Graph, Node
from steadyspike.deploy.network import FoldedNetwork
from steadyspike.deploy.ops import OPS
from steadyspike.deploy.written import write_file

FORMAT = "steadyspike folded network 1"
SUFFIX = ".safetensors"


def describe(network: FoldedNetwork) -> dict[str, Any]:
    """The graph as JSON can hold it; constants are named, not contained."""
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
    """Writes ``network`` to ``path`` (``.safetensors``) in one step: a crash leaves the old file or the new one.

    extra: JSON values to keep with it (class names, how images are scaled, ...); `load_extra` reads them.
    """
    missing_package("safetensors", "export")
    from safetensors.torch import save as to_bytes

    target = Path(path)
    if target.suffix != SUFFIX:
        raise ValueError(f"a folded network is saved as a {SUFFIX} file, got {target.name!r}")
    tensors = {
        f"{name}|{what}": tensor.detach().cpu().contiguous().clone()
        for name in network.graph.nodes
        for what, tensor in network.node(name).tensors.items()
    }
    description = json.dumps({**describe(network), "extra": extra or {}}, sort_keys=True)
    metadata = {"steadyspike": description, "digest": _digest(description, tensors)}
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
    except (SafetensorError, OSError, ValueError, KeyError, RuntimeError) as error:
        raise DamagedFile(f"{name} is not a readable safetensors file: {error}") from None
    description = metadata.get("steadyspike")
    if description is None or "digest" not in metadata:
        raise DamagedFile(f"{name} is a safetensors file, but not of a folded network")
    if metadata.get("digest") != _digest(description, tensors):
        raise DamagedFile(f"{name} is damaged: its content does not fit its digest; fold the network again")
    return json.loads(description), tensors


def load(path: str | os.PathLike[str]) -> FoldedNetwork:
    """The network of a file that `save` wrote; anything else is a `DamagedFile` that says what is wrong."""
    content, tensors = _read(path)
    name = Path(path).name
    if content.get("format") != FORMAT:
        raise DamagedFile(f"{name} has the format {content.get('format')!r}; this version reads {FORMAT!r}")
    graph = Graph(int(content["timesteps"]))
    for item in content["nodes"]:
        if item["op"] not in OPS and item["op"] != "input":
            raise DamagedFile(f"{name}: unknown operation {item['op']!r}; it was written by a newer version")
        constants = {what: tensors[f"{item['name']}|{what}"] for what in item["tensors"]}
        graph.nodes[item["name"]] = Node(
            item["name"],
            item["op"],
            tuple(item["inputs"]),
            tuple(item["shape"]),
            item["timed"],
            item["options"],
            constants,
        )
    graph.output = content["output"]
    return FoldedNetwork(graph).train(False)


def load_extra(path: str | os.PathLike[str]) -> dict[str, Any]:
    """What `save` was given as ``extra``."""
    return dict(_read(path)[0].get("extra", {}))
