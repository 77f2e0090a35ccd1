"""The schema of a folded network's description: a file is checked completely before anything runs.

Each operation has a rule: how many inputs, which options of which kind, which constants. After the rules are checked,
the graph is run once on torch's meta device, which computes shapes but no values, so that every declared shape is
checked.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from steadyspike.core.spec import RESETS
from steadyspike.deploy.graph import Graph, Node
from steadyspike.deploy.network import FoldedNetwork
from steadyspike.deploy.recurrent import loops

MOST_STEPS = 2**14
MOST_NODES = 2**14
MOST_VALUES = 2**27  # the largest number of values of a node, for one sample at one step: 512 MB in float32
MOST_SIDE = 2**24  # largest kernel, stride or padding

Check = Callable[[Any], bool]


class Invalid(ValueError):
    """A description that violates the schema; the message names the entry."""


def whole(least: int = 0, most: int = MOST_SIDE) -> Check:
    return lambda v: isinstance(v, int) and not isinstance(v, bool) and least <= v <= most


def each(check: Check, least: int = 0, most: int = 8) -> Check:
    return lambda v: isinstance(v, list) and least <= len(v) <= most and all(check(item) for item in v)


def one_of(*choices: object) -> Check:
    return lambda v: any(v is c or (type(v) is type(c) and v == c) for c in choices)


def number(least: float, most: float) -> Check:
    return lambda v: isinstance(v, (int, float)) and not isinstance(v, bool) and least <= v <= most


FLAG = one_of(True, False)
SIZES, STARTS, AXIS = each(whole(1), 1, 2), each(whole(), 1, 2), whole(0, 7)
FACTOR = number(1e-3, 1024)


@dataclass(frozen=True)
class Rule:
    """The rule of one operation.

    inputs: smallest and largest number
    options: required ones; ``may``: optional ones
    tensors: required constants; ``also``: optional ones
    """

    inputs: tuple[int, int] = (1, 1)
    options: dict[str, Check] = field(default_factory=dict)
    may: dict[str, Check] = field(default_factory=dict)
    tensors: tuple[str, ...] = ()
    also: tuple[str, ...] = ()


_SCALED = ("gain", "bias")
_WINDOW: dict[str, Check] = {"kernel_size": SIZES, "stride": SIZES, "padding": STARTS, "ceil_mode": FLAG}
_CONV: dict[str, Check] = {"stride": SIZES, "padding": STARTS, "dilation": SIZES, "groups": whole(1)}
RULES: dict[str, Rule] = {
    "input": Rule((0, 0)),
    "repeat": Rule(),
    "conv": Rule(options=_CONV, tensors=("weight",), also=_SCALED),
    "conv_transpose": Rule(options={**_CONV, "output_padding": STARTS}, tensors=("weight",), also=_SCALED),
    "linear": Rule(tensors=("weight",), also=_SCALED),
    "affine": Rule(tensors=("gain",), also=("bias",)),
    "sum": Rule((1, MOST_NODES), also=("edge", "offset")),
    "multiply": Rule((2, 2)),
    "matmul": Rule((2, 2)),
    "complement": Rule(),
    "spikes": Rule(),
    "lif": Rule(
        options={"reset": one_of(*RESETS), "strict": FLAG, "decay_input": FLAG,
                 "emit": one_of("spikes", "scaled", "potential")},
        may={"neuron": lambda v: isinstance(v, str)},
        tensors=("threshold", "leak", "start"),
    ),
    "avg_pool": Rule(options={**_WINDOW, "count_include_pad": FLAG}),
    "max_pool": Rule(options={**_WINDOW, "dilation": SIZES}),
    "adaptive_avg_pool": Rule(options={"output_size": SIZES}),
    "adaptive_max_pool": Rule(options={"output_size": SIZES}),
    "upsample": Rule(
        may={"scale_factor": lambda v: FACTOR(v) or each(FACTOR, 1, 2)(v), "size": SIZES,
             "mode": one_of("bilinear", "linear"), "align_corners": FLAG}
    ),
    "pad": Rule(options={"sides": each(whole(-MOST_SIDE), 2, 4),
                         "mode": one_of("constant", "reflect", "replicate", "circular")}),
    "group_norm": Rule(options={"groups": whole(1), "eps": number(0, 1)}, also=("weight", "bias")),
    "layer_norm": Rule(options={"over": each(whole(1), 1), "eps": number(0, 1)}, also=("weight", "bias")),
    "mean": Rule(options={"axes": each(AXIS, 1), "keep": FLAG, "of": each(whole(1), 1)}),
    "reshape": Rule(),
    "permute": Rule(options={"axes": each(AXIS, 1)}),
    "slice": Rule(options={"axis": AXIS, "start": whole(), "length": whole(1)}),
    "concat": Rule((1, MOST_NODES), options={"axis": AXIS}),
    "time_mean": Rule(),
    "time_sum": Rule(),
    "relu": Rule(),
    "previous": Rule((0, 0), options={"of": lambda v: isinstance(v, str), "steps": whole(1, MOST_STEPS)}),
}  # fmt: skip


def _must(condition: bool, what: str) -> None:
    if not condition:
        raise Invalid(what)


def graph_of(content: Any, constants: dict[str, Tensor]) -> Graph:
    """Returns the graph that a description and the constants of its file define; raises `Invalid`.

    content: the parsed JSON
    constants: by ``<node>|<what>``
    """
    _must(isinstance(content, dict), "its description is not a table")
    steps, nodes = content.get("timesteps"), content.get("nodes")
    _must(whole(1, MOST_STEPS)(steps), f"timesteps is {_shown(steps)}, not a whole number from 1 to {MOST_STEPS}")
    _must(isinstance(nodes, list) and 0 < len(nodes) <= MOST_NODES, f"it needs 1 to {MOST_NODES} nodes")
    graph = Graph(steps)
    for item in nodes:
        node = _node(item, graph, constants)
        graph.nodes[node.name] = node
    _must(sum(node.op == "input" for node in graph) == 1, "it needs one input")
    output = content.get("output")
    _must(isinstance(output, str) and output in graph.nodes, f"its output {_shown(output)} is not one of its nodes")
    graph.output = output
    used = {f"{node.name}|{what}" for node in graph for what in node.tensors}
    _must(used == constants.keys(), "it has constants that belong to no node")
    check_shapes(graph)
    return graph


def _node(item: Any, graph: Graph, constants: dict[str, Tensor]) -> Node:
    keys = {"name", "op", "inputs", "shape", "timed", "options", "tensors"}
    _must(isinstance(item, dict) and item.keys() == keys, "a node does not have the keys of a node")
    name, op, shape = item["name"], item["op"], item["shape"]
    _must(
        isinstance(name, str) and name not in graph.nodes,
        f"the node name {_shown(name)} is used twice or is not a text",
    )
    where = f"node {_shown(name)}"
    _must(isinstance(op, str) and op in RULES, f"{where}: unknown operation {_shown(op)}; a newer version may have it")
    rule, inputs, options = RULES[op], item["inputs"], item["options"]
    least, most = rule.inputs
    _must(isinstance(inputs, list) and least <= len(inputs) <= most, f"{where}: {op} does not take these inputs")
    _must(all(isinstance(i, str) and i in graph.nodes for i in inputs), f"{where}: an input is not an earlier node")
    _must(each(whole(1), 0)(shape), f"{where}: the shape {_shown(shape)} is not a list of whole numbers")
    _must(isinstance(options, dict), f"{where}: its options are not a table")
    valid = {**rule.options, **rule.may}
    _must(rule.options.keys() <= options.keys() <= valid.keys(), f"{where}: these are not the options of {op}")
    for key, value in options.items():
        _must(valid[key](value), f"{where}: {key} cannot be {_shown(value)}")
    _must(op != "upsample" or ("size" in options) != ("scale_factor" in options), f"{where}: a size or a scale_factor")
    _must(FLAG(item["timed"]), f"{where}: timed is true or false")
    before = {graph[i].timed for i in inputs}
    expected = {"repeat": ({False}, True), "time_mean": ({True}, False), "time_sum": ({True}, False)}
    takes, gives = expected.get(op, ({item["timed"]}, item["timed"]))
    _must(
        op in ("input", "previous") or (before == takes and item["timed"] is gives),
        f"{where}: its time axis does not match {op}",
    )
    _must(op not in ("lif", "previous") or item["timed"], f"{where}: a neuron needs a time axis")
    made = Node(name, op, tuple(inputs), tuple(shape), item["timed"], options, _constants(item, rule, where, constants))
    _check_neuron(made, where)
    return made


def _constants(item: dict[str, Any], rule: Rule, where: str, constants: dict[str, Tensor]) -> dict[str, Tensor]:
    names = item["tensors"]
    _must(each(lambda v: isinstance(v, str), 0, MOST_NODES)(names), f"{where}: its constants are not a list of names")
    allowed = {*rule.tensors, *rule.also} - {"edge"}
    edges = re.compile(r"edge(0|[1-9]\d{0,4})")
    for what in names:
        edge = edges.fullmatch(what) if "edge" in rule.also else None
        _must(
            what in allowed or (edge is not None and int(edge[1]) < len(item["inputs"])),
            f"{where}: it has a constant too many",
        )
        _must(f"{item['name']}|{what}" in constants, f"{where}: its constant {_shown(what)} is missing")
    _must(set(rule.tensors) <= set(names) and len(set(names)) == len(names), f"{where}: a constant is missing")
    tensors = {what: constants[f"{item['name']}|{what}"] for what in names}
    _must(all(t.is_floating_point() and t.numel() for t in tensors.values()), f"{where}: constants are real numbers")
    for what in ("gain", "bias"):
        if what in tensors and item["op"] not in ("group_norm", "layer_norm"):
            _must(tensors[what].ndim in (1, 2), f"{where}: {what} is [C] or [T, C]")
    if "weight" in tensors and item["op"] in ("conv", "conv_transpose", "linear"):
        sides = (2,) if item["op"] == "linear" else (3, 4)
        _must(tensors["weight"].ndim in sides, f"{where}: its weight has {tensors['weight'].ndim} axes")
    return tensors


def _check_neuron(node: Node, where: str) -> None:
    if node.op != "lif":
        return
    threshold, leak, start = (node.tensors[what] for what in ("threshold", "leak", "start"))
    _must(threshold.ndim == leak.ndim == 1, f"{where}: threshold and leak are [1] or [C]")
    _must(all(bool(t.isfinite().all()) for t in node.tensors.values()), f"{where}: its constants are not finite")
    _must(bool(((leak >= 0) & (leak <= 1)).all()), f"{where}: the leak 1/tau is not from 0 to 1")
    _must(start.ndim == 1 or start.shape[0] == 1, f"{where}: the initial potential is one for all samples")


def check_shapes(graph: Graph) -> None:
    """Runs the graph on the meta device, for one sample and one step, and compares the shapes that it declares."""
    per_step = [
        t.shape[0] for n in graph for what, t in n.tensors.items() if what in _SCALED and t.ndim == 2 and n.op != "lif"
    ]
    _must(all(steps >= graph.timesteps for steps in per_step), "it has constants for fewer steps than it runs")

    def watch(node: Node, value: Tensor) -> None:
        shape = tuple(value.shape[2 if node.timed else 1 :])
        _must(value.dtype == x.dtype, f"node {_shown(node.name)}: its constants have another dtype than the weights")
        _must(shape == node.shape, f"node {_shown(node.name)}: its shape is {list(shape)}, not {list(node.shape)}")

    for node in loops(graph):
        of = graph.nodes.get(node.options["of"])
        fits = of is not None and of.timed and of.shape == node.shape and graph[graph.output].timed
        _must(fits, f"node {_shown(node.name)}: the earlier value that it reads does not match")
    for node in graph:
        fits = math.prod(node.shape) <= MOST_VALUES
        _must(fits, f"node {_shown(node.name)}: the shape {list(node.shape)} has more than {MOST_VALUES} values")
        channels = 1 if not node.shape else node.shape[-1] if node.op == "linear" else node.shape[0]
        rows = [] if node.op in ("group_norm", "layer_norm") else [node.tensors.get(what) for what in _SCALED]
        fits = all(t is None or t.shape[-1] == channels for t in rows)
        _must(fits, f"node {_shown(node.name)}: its gain or bias is not one per channel")
    layers = [n for n in graph if "weight" in n.tensors]
    weights = [t for n in layers for what, t in n.tensors.items() if what in ("weight", "bias")]
    _must(len({t.dtype for t in weights}) <= 1, "its weights and biases have different dtypes")
    x = torch.zeros((1, 1, *graph.input.shape) if graph.input.timed else (1, *graph.input.shape),
                    dtype=weights[0].dtype if weights else torch.float32, device="meta")  # fmt: skip
    try:
        FoldedNetwork(graph).to("meta").run(x, 1, watch)
    except Invalid:
        raise
    except Exception as error:  # torch may raise any error for a graph that cannot be computed
        raise Invalid(f"its graph cannot be computed: {' '.join(str(error).split())[:160]}") from None


def _shown(thing: object) -> str:
    """Returns a short text about something from a file."""
    text = ascii(thing)
    return text if len(text) <= 60 else f"{text[:57]}..."
