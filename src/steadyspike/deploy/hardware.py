"""Checks an integer network against the limits of neuromorphic chips, layer by layer."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch

from steadyspike.deploy.integers import IntegerNetwork
from steadyspike.deploy.kinds import REAL

Finding = tuple[str, bool, str]  # layer, whether it fits, what was checked


class Chip(NamedTuple):
    """The chip's name for users, and its checks."""

    name: str
    check: Callable[[IntegerNetwork], Iterator[Finding]]


def _accumulator_bits(network: IntegerNetwork, name: str) -> int:
    """The bits for the largest current of a layer if every input spikes: fan-in times the largest weights, signed."""
    integer = network.nodes[name]
    weight = integer.tensors["weight"].abs()
    worst = float(weight.flatten(1).sum(1).max())
    if "bias" in integer.tensors:
        worst += float(integer.tensors["bias"].abs().max())
    return math.ceil(math.log2(worst + 1)) + 1


def _synapses(network: IntegerNetwork) -> Iterator[str]:
    for node in network.graph:
        if node.op in ("conv", "linear") and node.name not in network.first:
            yield node.name


def _loihi2(network: IntegerNetwork) -> Iterator[Finding]:
    for name in _synapses(network):
        bits = _accumulator_bits(network, name)
        yield name, network.bits <= 8, f"weights of {network.bits} bits (8)"
        yield name, bits <= 24, f"current of up to {bits} bits (24)"
    for node in network.graph.neurons():
        integer = network.nodes[node.name]
        v = int(integer.tensors["threshold"].max())
        yield node.name, v < 2**17 << 6, f"threshold {v} (17 bits shifted by 6)"
        one = all(integer.tensors[what].unique().numel() == 1 for what in ("threshold", "keep"))
        yield node.name, one, "one threshold and one decay per population"
        hard = node.options["reset"] == "hard"
        yield (
            node.name,
            hard,
            "reset to 0" if hard else f"{node.options['reset']} reset needs its own neuron program",
        )


def _speck(network: IntegerNetwork) -> Iterator[Finding]:
    for name in _synapses(network):
        node = network.graph[name]
        yield name, network.bits <= 8, f"weights of {network.bits} bits (8)"
        if node.op == "conv":
            kernel, channels = max(node.tensors["weight"].shape[2:]), max(node.tensors["weight"].shape[:2])
            yield name, kernel < 16, f"kernel {kernel} (below 16)"
            yield name, channels < 1024, f"{channels} channels (below 1024)"
    for node in network.graph:
        if node.op == "avg_pool" and node.name not in network.first:
            size = max(node.options["kernel_size"])
            yield node.name, size in (1, 2, 4), f"pooling by {size} (1, 2 or 4)"
        if node.op == "lif":
            integer = network.nodes[node.name]
            v = int(integer.tensors["threshold"].abs().max())
            yield node.name, v < 2**15, f"threshold {v} (16 bits)"
            leaks = bool(torch.any(integer.tensors["keep"] != 4096))
            yield node.name, not leaks, "no leak" if not leaks else "a leak that multiplies (the chip has IF neurons)"


CHIPS = {"loihi2": Chip("Loihi 2", _loihi2), "speck": Chip("Speck", _speck)}


def chip_report(network: IntegerNetwork, chip: str) -> str:
    """Returns a text: what fits the chip, and every finding that does not."""
    if chip not in CHIPS:
        raise ValueError(f"unknown chip {chip!r}; known: {', '.join(CHIPS)}")
    findings = list(CHIPS[chip].check(network))
    bad = [(layer, what) for layer, fits, what in findings if not fits]
    lines = [f"{CHIPS[chip].name}: {len(findings) - len(bad)} of {len(findings)} checks fit"]
    lines += [f"  {layer}: {what}" for layer, what in bad]
    first = sorted(name for name in network.first if network.graph[name].op in ("conv", "linear"))
    if first and network.kinds[first[0]] == REAL:
        lines.append(f"  {', '.join(first)}: reads real numbers and is computed off the chip")
    return "\n".join(lines)
