"""The static memory of a generated C file: the C type of every value, and one array per type that the values share."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from steadyspike.deploy.standalone.c_columns import lists
from steadyspike.deploy.standalone.c_types import BYTES, element_type, potential_type, words
from steadyspike.deploy.standalone.program import Array, Buffer, Combine, Layer, Operation, Pool, Program, Synapse


def read_by(op: Operation) -> list[Buffer]:
    """Returns the buffers that an operation reads."""
    if isinstance(op, Layer):
        return [term.source for term in op.terms]
    return [op.source] if isinstance(op, Pool) else [operand.buffer for operand in op.operands]


def written_by(op: Operation) -> Buffer:
    return op.out.buffer if isinstance(op, Combine) else op.out


@dataclass
class Slot:
    """The elements of a shared array that a value occupies from its first write to its last read."""

    c_type: str
    size: int
    first: int
    last: int
    offset: int = 0


class Memory:
    """The addresses of all values: ``address(buffer)``, and of the lists that a layer makes: ``local(layer, ...)``."""

    def __init__(self, program: Program) -> None:
        self.integer = program.integer
        self.slots: dict[str, Slot] = {}
        operations = [*program.still, *program.each_step]
        for now, op in enumerate(operations):
            self._see(written_by(op), now)
            for buffer in read_by(op):
                # Values that are computed once per image are read at every step.
                stays = now >= len(program.still) and self._written(buffer) < len(program.still)
                self._see(buffer, len(operations) if stays else now)
            if isinstance(op, Layer):
                self._see_lists(op, now)
        self._see(program.output, len(operations))
        self._pack()
        self.potentials = {
            layer.neurons.potential: (potential_type(layer.neurons, self.integer), layer.out.size)
            for layer in program.layers
            if layer.neurons is not None
        }

    def _written(self, buffer: Buffer) -> float:
        return self.slots[buffer.name].first if buffer.name in self.slots else float("inf")

    def _see(self, buffer: Buffer, now: int) -> None:
        if buffer.kind == "input":
            return
        c_type = element_type(buffer, self.integer)
        size = buffer.grid[1] * buffer.grid[2] * words(buffer) if buffer.kind == "bits" else buffer.size
        slot = self.slots.setdefault(buffer.name, Slot(c_type, size, now, now))
        slot.last = max(slot.last, now)

    def _see_lists(self, layer: Layer, now: int) -> None:
        for i, term in enumerate(layer.terms):
            if isinstance(term, Synapse):
                for name, (c_type, size) in lists(layer, term, self.integer).items():
                    self.slots[f"{layer.name}|{name}{i}"] = Slot(c_type, size, now, now)

    def _pack(self) -> None:
        """The largest first, each at the lowest address that is free while the value is needed."""
        placed: list[Slot] = []
        for slot in sorted(self.slots.values(), key=lambda s: (-s.size, s.first)):
            others = [s for s in placed if s.c_type == slot.c_type and s.first <= slot.last and slot.first <= s.last]
            for other in sorted(others, key=lambda s: s.offset):
                if slot.offset + slot.size <= other.offset:
                    break
                slot.offset = max(slot.offset, other.offset + other.size)
            placed.append(slot)

    def arrays(self) -> dict[str, int]:
        """Returns the number of elements of the shared array of each type."""
        sizes: dict[str, int] = {}
        for slot in self.slots.values():
            sizes[slot.c_type] = max(sizes.get(slot.c_type, 0), slot.offset + slot.size)
        return sizes

    def address(self, buffer: Buffer) -> str:
        return "frame" if buffer.kind == "input" else self._at(buffer.name)

    def local(self, layer: Layer, part: str, i: int) -> str:
        return self._at(f"{layer.name}|{part}{i}")

    def _at(self, name: str) -> str:
        slot = self.slots[name]
        return f"net->{slot.c_type}_values + {slot.offset}"

    def ram(self) -> int:
        """Returns the bytes of potentials and shared arrays."""
        shared = sum(BYTES[c_type] * size for c_type, size in self.arrays().items())
        return shared + sum(BYTES[c_type] * size for c_type, size in self.potentials.values())


def is_scalar(constant: Array) -> bool:
    return bool(np.all(constant == constant.flat[0]))
