"""Writes a `Program` as JSON that the page's script interprets.

Constants are base64 of the smallest sufficient type.
"""

from __future__ import annotations

import base64
import math
from typing import Any

import numpy as np

from steadyspike.deploy.standalone.program import (
    Array,
    Buffer,
    Combine,
    Edge,
    Layer,
    Neurons,
    Operation,
    Pool,
    Program,
    Strided,
    Synapse,
)

TYPES = ("i1", "i2", "i4", "f4", "f8")


def constant(values: Array | None) -> dict[str, Any] | None:
    """Encodes a table of numbers in the smallest type that holds all of them exactly."""
    if values is None:
        return None
    for kind in TYPES:
        with np.errstate(invalid="ignore", over="ignore"):
            small = values.astype(f"<{kind}")
        if np.array_equal(small.astype(np.float64), values):
            break
    return {"type": kind, "shape": list(values.shape), "data": base64.b64encode(small.tobytes()).decode()}


def program_data(program: Program) -> dict[str, Any]:
    """Returns everything that the script needs to run a program."""
    operations = [*program.still, *program.each_step]
    return {
        "shape": list(program.shape), "takesFrames": program.takes_frames, "timesteps": program.timesteps,
        "stills": len(program.still), "operations": [_operation(op) for op in operations],
        "output": program.output.name, "scale": program.output_scale, "classes": program.output.size,
        "macs": _real_products(operations),
    }  # fmt: skip


def _real_products(operations: list[Operation]) -> list[int]:
    """Returns the multiply-accumulates of each operation: those of synapses that read real numbers."""
    return [
        sum(
            t.rows.size * math.prod(op.out.grid[1:])
            for t in op.terms
            if isinstance(t, Synapse) and t.source.kind not in ("bits", "counts")
        )
        if isinstance(op, Layer)
        else 0
        for op in operations
    ]


def _buffer(buffer: Buffer) -> dict[str, Any]:
    return {"name": buffer.name, "kind": buffer.kind, "grid": list(buffer.grid)}


def _operation(op: Operation) -> dict[str, Any]:
    if isinstance(op, Layer):
        return _layer(op)
    if isinstance(op, Pool):
        return _pool(op)
    return _combine(op)


def _layer(op: Layer) -> dict[str, Any]:
    return {
        "op": "layer", "name": op.name, "out": _buffer(op.out), "terms": [_term(term) for term in op.terms],
        "constant": constant(op.constant), "gain": constant(op.gain), "bias": constant(op.bias),
        "rescale": op.rescale, "relu": op.relu, "neurons": None if op.neurons is None else _neurons(op.neurons),
    }  # fmt: skip


def _neurons(n: Neurons) -> dict[str, Any]:
    tables = {what: constant(getattr(n, what)) for what in ("threshold", "keep", "gain", "start")}
    return {**tables, "reset": n.reset, "strict": n.strict, "emit": n.emit}


def _term(term: Synapse | Edge) -> dict[str, Any]:
    if isinstance(term, Edge):
        return {"edge": True, "source": _buffer(term.source), "weight": constant(term.weight)}
    shared = ("strides", "size", "kernel", "stride", "padding", "dilation", "groups")
    return {"edge": False, "name": term.name, "source": _buffer(term.source), "rows": constant(term.rows)} | {
        what: getattr(term, what) for what in shared
    }


def _pool(op: Pool) -> dict[str, Any]:
    shared = ("name", "kernel", "stride", "padding", "dilation", "takes", "factor")
    return {"op": "pool", "out": _buffer(op.out), "source": _buffer(op.source)} | {w: getattr(op, w) for w in shared}


def _combine(op: Combine) -> dict[str, Any]:
    def walk(strided: Strided) -> dict[str, Any]:
        return {"buffer": _buffer(strided.buffer), "base": strided.base, "strides": list(strided.strides)}

    return {
        "op": "combine", "name": op.name, "out": walk(op.out), "operands": [walk(o) for o in op.operands],
        "sizes": list(op.sizes), "reduced": op.reduced, "complement": op.complement, "factor": op.factor,
    }  # fmt: skip
