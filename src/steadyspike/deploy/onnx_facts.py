"""Makes an ONNX file self-contained: start potentials as defaults of its inputs, and information as metadata.

The states ``u_<i>`` of a streaming graph are inputs with a default: the initial potentials, [1, ...], which are
broadcast over the batch. So the first step needs only the frame; later steps also get the states that the previous step
returned.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from steadyspike.deploy.network import FoldedNetwork

KEY = "steadyspike"  # key in the metadata


def onnx_facts(network: FoldedNetwork, states: Sequence[str] | None, extra: dict[str, Any] | None) -> dict[str, Any]:
    """Returns the metadata of an exported network.

    states: layers of a streaming graph; None for a graph with all steps

    extra: as for `deploy.save`: class names, how images are scaled
    """
    graph = network.graph
    lead = ["B"] if states is not None or not graph.input.timed else ["T", "B"]
    facts: dict[str, Any] = {
        **(extra or {}),
        "format": "steadyspike onnx 1",
        "steps": graph.timesteps,
        "input_shape": [*lead, *graph.input.shape],
        "output_has_time": states is None and graph[graph.output].timed,
    }
    if states is not None:
        facts["states"] = [{"input": f"u_{i}", "output": f"u_{i}_next", "layer": name} for i, name in enumerate(states)]
    return facts


def add_facts(model: Any, facts: dict[str, Any]) -> None:
    """Writes ``facts`` to the metadata of an ONNX model, as JSON."""
    entry = model.metadata_props.add()
    entry.key, entry.value = KEY, json.dumps(facts, sort_keys=True)


def read_facts(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Returns the facts of a file that `export_onnx` wrote."""
    import onnx

    model = onnx.load(os.fspath(path))
    return next((json.loads(entry.value) for entry in model.metadata_props if entry.key == KEY), {})


def add_starts(model: Any, starts: Sequence[Tensor]) -> None:
    """Makes the potentials ``starts``, each [1, ...], the defaults of the inputs ``u_<i>``.

    An input with a default of batch 1 is expanded to the batch of the frame before the graph reads it.
    """
    from onnx import TensorProto, helper, numpy_helper

    graph = model.graph
    nodes = [helper.make_node("Shape", ["frame"], ["steadyspike_batch"], start=0, end=1)]
    for i, start in enumerate(starts):
        name, wide, shape = f"u_{i}", f"u_{i}_wide", f"u_{i}_shape"
        for node in graph.node:
            for index, read in enumerate(node.input):
                if read == name:
                    node.input[index] = wide
        sizes = helper.make_tensor(f"{shape}_sample", TensorProto.INT64, [start.ndim - 1], list(start.shape[1:]))
        graph.initializer.extend([numpy_helper.from_array(start.detach().cpu().numpy(), name), sizes])
        nodes.append(helper.make_node("Concat", ["steadyspike_batch", f"{shape}_sample"], [shape], axis=0))
        nodes.append(helper.make_node("Expand", [name, shape], [wide]))
        declared = next(value for value in graph.input if value.name == name)
        declared.type.tensor_type.shape.dim[0].dim_param = f"batch_or_1_{i}"
    rest = list(graph.node)
    del graph.node[:]
    graph.node.extend([*nodes, *rest])


def usage(file: str, facts: dict[str, Any]) -> str:
    """Returns a Python program that runs the exported file with NumPy and onnxruntime alone."""
    shape = ", ".join(
        str(2 if size == "B" else facts["steps"] if size == "T" else size) for size in facts["input_shape"]
    )
    lines = [
        "import json",
        "import numpy as np",
        "import onnxruntime",
        "",
        f"session = onnxruntime.InferenceSession({file!r})",
        'facts = json.loads(session.get_modelmeta().custom_metadata_map["steadyspike"])',
        f"x = np.zeros(({shape}), np.float32)  # your data, {', '.join(map(str, facts['input_shape']))}",
    ]
    if facts.get("mean") is not None:
        lines += [
            "# an image with values 0 to 255: x = (x / 255 - mean) / std per channel, with facts['mean'], facts['std']"
        ]
    if "states" in facts:
        lines += [
            "potentials, total = {}, 0.0  # the first step starts from the potentials in the file",
            'for step in range(facts["steps"]):',
            '    output, *states = session.run(None, {"frame": x, **potentials})',
            '    potentials = {s["input"]: u for s, u in zip(facts["states"], states)}',
            "    total = total + output",
            'logits = total / facts["steps"]',
        ]
    else:
        lines += ['(output,) = session.run(None, {"input": x})']
        lines += ["logits = output.mean(0)" if facts["output_has_time"] else "logits = output"]
    named = facts.get("classes")
    lines += ["best = logits.argmax(-1)"]
    lines += ['print([facts["classes"][i] for i in best])' if named else "print(best)"]
    return "\n".join(lines) + "\n"
