"""Moves constants into the weights of convolutions and linear layers."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from steadyspike.deploy.graph import Graph, Node


def scaled_weight(node: Node, scale: Tensor | None) -> Tensor | None:
    """The weight that reads S instead of ``scale * S``; None if the scale differs between the inputs of one weight.

    scale: broadcastable to the input sample, [C, 1, 1] for a convolution, [..., F] for a linear layer
    """
    weight = node.tensors["weight"]
    if scale is None:
        return weight
    if scale.numel() == 1:
        return weight * scale.reshape(())
    if node.op == "linear":
        return weight * scale.reshape(1, -1) if scale.numel() == scale.shape[-1] else None
    if scale.numel() != scale.shape[0]:
        return None
    groups = node.options["groups"]
    if node.op == "conv_transpose":  # its weight is [C in, C out / groups, ...]
        return weight * scale.reshape(-1, *([1] * (weight.ndim - 1)))
    per_group = scale.reshape(groups, 1, -1).expand(groups, weight.shape[0] // groups, -1)
    return weight * per_group.reshape(weight.shape[0], -1, *([1] * (weight.ndim - 2)))


def absorb_norms(graph: Graph) -> Graph:
    """Makes an ``affine`` or added constant part of a convolution or linear layer, if it is its only reader.

    A norm with constants per time step becomes the synapse's gain and bias per step. This equals a weight per step W[t]
    = gain[t] W without T copies of W.
    """
    users = graph.consumers()
    done = Graph(graph.timesteps)
    into: dict[str, str] = {}  # an absorbed norm, and the synapse that replaces it
    for node in graph:
        node = node.with_inputs(*(into.get(name, name) for name in node.inputs))
        norm = node if node.op == "affine" else _added_per_channel(node)
        source = done.nodes.get(node.inputs[0]) if norm is not None else None
        if norm is not None and source is not None and _absorbs(source, norm) and len(users[source.name]) == 1:
            done.nodes[source.name] = _absorbed(source, norm)
            into[node.name] = source.name
        else:
            done.nodes[node.name] = node
    done.output = into.get(graph.output, graph.output)
    return done


def compose_linear(graph: Graph) -> Graph:
    """Combines two linear layers with nothing between them: W2 (W1 x + b1) + b2."""
    users = graph.consumers()
    done = Graph(graph.timesteps)
    into: dict[str, str] = {}
    for node in graph:
        node = node.with_inputs(*(into.get(name, name) for name in node.inputs))
        first = done.nodes.get(node.inputs[0]) if node.op == "linear" else None
        plain = first is not None and first.op == "linear" and not {"gain"} & {*first.tensors, *node.tensors}
        if plain and first is not None and len(users[first.name]) == 1:
            weight = node.tensors["weight"]
            tensors = {"weight": weight @ first.tensors["weight"]}
            biases = [
                t for t in (_through(weight, first.tensors.get("bias")), node.tensors.get("bias")) if t is not None
            ]
            if biases:
                tensors["bias"] = torch.stack(biases).sum(0)
            done.nodes[first.name] = replace(first, shape=node.shape, tensors=tensors)
            into[node.name] = first.name
        else:
            done.nodes[node.name] = node
    done.output = into.get(graph.output, graph.output)
    return done


def _through(weight: Tensor, bias: Tensor | None) -> Tensor | None:
    return None if bias is None else weight @ bias


def _added_per_channel(node: Node) -> Node | None:
    """Returns a sum that adds one constant to each channel as an ``affine`` with gain 1; None for every other node."""
    offset = node.tensors.get("offset")
    if node.op != "sum" or offset is None or len(node.tensors) > 1 or len(node.inputs) > 1 or not node.shape:
        return None
    if any(size != 1 for size in offset.shape[1:]):
        return None
    bias = offset.reshape(-1).expand(node.shape[0])
    return replace(node, op="affine", tensors={"gain": torch.ones_like(bias), "bias": bias})


def _absorbs(synapse: Node, norm: Node) -> bool:
    """A linear layer's channels are its last axis, a norm's its first. They are the same only for one axis."""
    if synapse.op not in ("conv", "linear") or synapse.timed != norm.timed:
        return False
    return synapse.op == "conv" or len(synapse.shape) == 1


def _absorbed(synapse: Node, norm: Node) -> Node:
    gain, bias = norm.tensors["gain"], norm.tensors.get("bias")
    tensors = dict(synapse.tensors)
    old = tensors.pop("bias", None)
    dtype = tensors["weight"].dtype
    total = torch.zeros_like(gain) if bias is None else bias
    if old is not None:
        total = total + gain * old
    if gain.ndim == 1 and "gain" not in tensors:
        tensors["weight"] = (tensors["weight"] * gain.view(-1, *([1] * (tensors["weight"].ndim - 1)))).to(dtype)
    else:
        tensors["gain"] = (gain * tensors["gain"] if "gain" in tensors else gain).to(dtype)
    tensors["bias"] = total.to(dtype)
    return replace(synapse, tensors=tensors)
