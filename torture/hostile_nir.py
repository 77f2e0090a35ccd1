"""NIR files made by hand to do harm: links out of the file, bombs, claims, cycles, values that no neuron can have."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np


def chain(*nodes: Any) -> Any:
    """A NIR graph of nodes behind each other, with an input and an output of 4 values."""
    import nir

    named = {"input": nir.Input({"input": np.array([4])})}
    named |= {f"n{i}": node for i, node in enumerate(nodes)}
    named["output"] = nir.Output({"output": np.array([4])})
    names = list(named)
    return nir.NIRGraph(named, list(itertools.pairwise(names)), type_check=False)


def lif(**changes: Any) -> Any:
    import nir

    constants = {"tau": 2e-4, "r": 1.0, "v_leak": 0.0, "v_threshold": 1.0, "v_reset": 0.0, **changes}
    return nir.LIF(**{name: np.full(4, value) for name, value in constants.items()})


def _written(path: Path, graph: Any, **metadata: Any) -> None:
    import nir

    graph.metadata = metadata
    nir.write(str(path), graph)


def _edited(path: Path, change: Callable[[Any], None]) -> None:
    import h5py

    _written(path, chain(lif()))
    with h5py.File(path, "a") as file:
        change(file)


def _replace_tau(file: Any, **options: Any) -> None:
    del file["node/nodes/n0/tau"]
    file.create_dataset("node/nodes/n0/tau", **options)


def _external_link(file: Any) -> None:
    import h5py

    del file["node/nodes/n0/tau"]
    file["node/nodes/n0/tau"] = h5py.ExternalLink("/etc/passwd", "tau")


def _soft_link(file: Any) -> None:
    import h5py

    del file["node/nodes/n0/tau"]
    file["node/nodes/n0/tau"] = h5py.SoftLink("/node/nodes/n0/r")


def _virtual(file: Any) -> None:
    import h5py

    layout = h5py.VirtualLayout((4,), "f8")
    layout[:] = h5py.VirtualSource("other.h5", "data", (4,))
    del file["node/nodes/n0/tau"]
    file.create_virtual_dataset("node/nodes/n0/tau", layout)


def _cycle(file: Any) -> None:
    file["node/nodes/n0/again"] = file["node/nodes"]


def _deep(file: Any) -> None:
    group = file["node"]
    for _ in range(2000):
        group = group.create_group("d")


def _two_scales(layers: int) -> Any:
    """Each layer adds two Scale nodes of the layer before: 2^layers ways through the graph."""
    import nir

    nodes: dict[str, Any] = {"input": nir.Input({"input": np.array([4])})}
    edges, last = [], ["input"]
    for i in range(layers):
        for name in (f"a{i}", f"b{i}"):
            nodes[name] = nir.Scale(np.full(4, 0.5))
            edges += [(source, name) for source in last]
        last = [f"a{i}", f"b{i}"]
    nodes["output"] = nir.Output({"output": np.array([4])})
    return nir.NIRGraph(nodes, [*edges, *((name, "output") for name in last)], type_check=False)


def _convolution(padding: int = 0, bias: tuple[int, ...] = (2,)) -> Any:
    import nir

    sizes = {"input": (1, 8, 8), "output": (2, 6 + 2 * padding, 6 + 2 * padding)}
    conv = nir.Conv2d((8, 8), np.zeros((2, 1, 3, 3)), 1, padding, 1, 1, np.zeros(bias))
    ends = {"input": nir.Input({"input": np.array(sizes["input"])})}
    nodes = {**ends, "conv": conv, "output": nir.Output({"output": np.array(sizes["output"])})}
    return nir.NIRGraph(nodes, [("input", "conv"), ("conv", "output")], type_check=False)


def _recurrent(through: int = 1) -> Any:
    """A linear layer and a neuron; feedback from one of them to itself."""
    import nir

    graph = chain(nir.Linear(np.eye(4)), lif())
    graph.nodes["back"] = nir.Linear(np.eye(4))
    graph.edges += [(f"n{through}", "back"), ("back", f"n{through}")]
    return graph


def _many_cycles(count: int) -> Any:
    """One neuron that feeds itself through many layers."""
    import nir

    graph = chain(lif())
    for i in range(count):
        graph.nodes[f"back{i}"] = nir.Scale(np.full(4, 0.1))
        graph.edges += [("n0", f"back{i}"), (f"back{i}", "n0")]
    return graph


def _nested(depth: int) -> Any:
    import nir

    graph = chain(lif())
    for _ in range(depth):
        ends = {"input": nir.Input({"input": np.array([4])}), "output": nir.Output({"output": np.array([4])})}
        edges = [("input", "inside"), ("inside", "output")]
        graph = nir.NIRGraph({**ends, "inside": graph}, edges, type_check=False)
    return graph


def _delay(seconds: float) -> Any:
    import nir

    return nir.Delay(np.full(4, seconds))


def _two_inputs() -> Any:
    import nir

    graph = chain(lif())
    graph.nodes["second"] = nir.Input({"input": np.array([4])})
    graph.edges.append(("second", "n0"))
    return graph


# name: (writes the file, what the refusal says); an empty text: the file is read
FILES: dict[str, tuple[Callable[[Path], None], str]] = {
    "an external link": (lambda p: _edited(p, _external_link), "link to another location"),
    "a soft link": (lambda p: _edited(p, _soft_link), "link to another location"),
    "external storage": (
        lambda p: _edited(p, lambda f: _replace_tau(f, shape=(4,), dtype="f8", external=[("/etc/passwd", 0, 32)])),
        "another file",
    ),
    "virtual data": (lambda p: _edited(p, _virtual), "another file"),
    "a group in itself": (lambda p: _edited(p, _cycle), "appears twice"),
    "2,000 groups in each other": (lambda p: _edited(p, _deep), "nested too deeply"),
    "a claim of 512 GiB": (
        lambda p: _edited(p, lambda f: _replace_tau(f, shape=(1 << 36,), dtype="f8", chunks=(1 << 20,))),
        "larger than a file of this size",
    ),
    "a bomb of 1 GiB": (
        lambda p: _edited(p, lambda f: _replace_tau(f, shape=(1 << 27,), dtype="f8", chunks=(1 << 20,), fillvalue=1.0)),
        "larger than a file of this size",
    ),
    "objects": (lambda p: _edited(p, lambda f: _replace_tau(f, data=np.zeros(4, "c8"))), "neither numbers nor text"),
    "60 layers of two Scale nodes": (lambda p: _written(p, _two_scales(60)), ""),
    "a recurrent graph": (lambda p: _written(p, _recurrent()), ""),
    "a cycle without a neuron": (lambda p: _written(p, _recurrent(through=0)), "cycle without a neuron"),
    "200 cycles": (lambda p: _written(p, _many_cycles(200)), ""),
    "20 graphs in each other": (lambda p: _written(p, _nested(20)), "nested too deeply"),
    "a delay of 10^9 steps": (lambda p: _written(p, chain(lif(), _delay(1e5))), "n1: a delay of"),
    "a convolution": (lambda p: _written(p, _convolution()), ""),
    "padding to 320 GB": (lambda p: _written(p, _convolution(padding=100_000)), "has more than 134217728 values"),
    "a bias for each step": (lambda p: _written(p, _convolution(bias=(2, 2))), "not one number per channel"),
    "two inputs": (lambda p: _written(p, _two_inputs()), "2 inputs"),
    "tau of 0": (lambda p: _written(p, chain(lif(tau=0.0))), "tau"),
    "tau that is NaN": (lambda p: _written(p, chain(lif(tau=np.nan))), "tau"),
    "tau shorter than a step": (lambda p: _written(p, chain(lif(tau=5e-5))), "tau"),
    "a threshold of 0": (lambda p: _written(p, chain(lif(v_threshold=0.0))), "threshold"),
    "an infinite threshold": (lambda p: _written(p, chain(lif(v_threshold=np.inf))), "threshold"),
    "dt of 0": (lambda p: _written(p, chain(lif()), dt=0.0), "dt"),
    "dt below 0": (lambda p: _written(p, chain(lif()), dt=-1.0), "dt"),
    "10^9 time steps": (lambda p: _written(p, chain(lif()), timesteps=10**9), "timesteps"),
    "no time step": (lambda p: _written(p, chain(lif()), timesteps=0), "timesteps"),
    "an edge to nowhere": (lambda p: _written(p, _to_nowhere()), "no such nodes"),
}


def _to_nowhere() -> Any:
    graph = chain(lif())
    graph.edges.append(("n0", "nowhere"))
    return graph
