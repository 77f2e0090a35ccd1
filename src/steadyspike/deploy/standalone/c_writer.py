"""Shared code of the parts of the C writer: tables of constants, helper functions in use, names and types."""

from __future__ import annotations

from importlib.resources import files

import numpy as np

from steadyspike.deploy.standalone.c_memory import Memory, is_scalar, read_by, written_by
from steadyspike.deploy.standalone.c_names import comment, constant_array, identifier, number, unique
from steadyspike.deploy.standalone.c_types import BYTES, is_whole
from steadyspike.deploy.standalone.program import Array, Buffer, Combine, Operation, Program, Synapse

HELPERS = ("bit_of", "lowest_bit", "list_spikes", "list_numbers", "add_rows", "to_integer", "exponential")


class Writer:
    """Collects the pieces of one C file.

    stack: bytes of the largest local arrays of one function
    """

    def __init__(self, program: Program) -> None:
        self.program, self.memory = program, Memory(program)
        self.operations: list[Operation] = [*program.still, *program.each_step]
        self.name = identifier(program.name)
        self.tables: list[str] = []
        self.flash = 0
        self.stack = 0
        self.helpers: set[tuple[str, tuple[str, ...]]] = set()
        buffers = [written_by(op).name for op in self.operations]
        names = list(dict.fromkeys([*buffers, *self.memory.potentials]))
        self.names = dict(zip(names, unique(names)))
        self.functions = [f"layer_{name}" for name in unique(op.name for op in self.operations)]
        self._tables: dict[str, int] = {}
        self._written: set[str] = set()

    def table(self, what: str, of: str, values: Array, c_type: str, about: str) -> str:
        """Returns the name of a new constant table."""
        name = f"{what}_{identifier(of)[:40]}"
        self._tables[name] = self._tables.get(name, 0) + 1
        if self._tables[name] > 1:
            name = f"{name}_{self._tables[name]}"
        self.tables.append(constant_array(name, values, c_type, about))
        self.flash += values.size * BYTES[c_type]
        return name

    def constant(self, what: str, of: str, values: Array, c_type: str, index: str) -> str:
        """Returns a constant as an expression: one number, or an element of a table."""
        if is_scalar(values):
            return number(float(values.flat[0]), c_type)
        return f"{self.table(what, of, values, c_type, f'{of}: {what}')}[{index}]"

    def use(self, helper: str, *types: str) -> str:
        """Returns the name of a helper function for these types."""
        self.helpers.add((helper, types))
        if helper == "list_spikes":
            self.use("lowest_bit")
        return "_".join([helper, *(t.removesuffix("_t") for t in types)])

    def helper_texts(self) -> str:
        """Returns the helpers that the layers call, in the order of `HELPERS`."""
        folder = files("steadyspike") / "deploy" / "standalone" / "c_parts"
        texts = []
        for helper, types in sorted(self.helpers, key=lambda used: (HELPERS.index(used[0]), used[1])):
            text = (folder / f"{helper}.c").read_text(encoding="utf-8")
            text = text.replace("@N", "_".join(t.removesuffix("_t") for t in types))
            for i, c_type in enumerate(types):
                text = text.replace(f"@{i}", c_type)
            texts.append(text)
        return "\n".join(texts)

    def first_write(self, buffer: Buffer) -> bool:
        """Returns True the first time a buffer is written, because several copies may fill it part by part."""
        new = buffer.name not in self._written
        self._written.add(buffer.name)
        return new


def shape_text(buffer: Buffer) -> str:
    """Returns ``[channels, height, width]``, or ``[channels]``."""
    channels, height, width = buffer.grid
    return f"[{channels}]" if height * width == 1 else f"[{channels}, {height}, {width}]"


def term_text(term: Synapse) -> str:
    """Returns one line about a synapse."""
    high, wide = term.kernel
    parts = [f"{term.name}: {'linear' if is_whole(term) else f'conv {high} x {wide}'} over {term.source.name}"]
    parts += [f"stride {term.stride[0]} x {term.stride[1]}"] if term.stride != (1, 1) else []
    parts += [f"dilation {term.dilation[0]} x {term.dilation[1]}"] if term.dilation != (1, 1) else []
    parts += [f"{term.groups} groups"] if term.groups > 1 else []
    return comment(f"{', '.join(parts)} {shape_text(term.source)}")


def reads_frame(op: Operation) -> bool:
    return any(buffer.kind == "input" for buffer in read_by(op))


def uses_step(op: Operation) -> bool:
    return not isinstance(op, Combine) and any(
        constant is not None and np.atleast_2d(constant).shape[0] > 1
        for constant in (getattr(op, "gain", None), getattr(op, "bias", None))
    )
