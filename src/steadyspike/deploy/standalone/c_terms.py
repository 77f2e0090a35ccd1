"""The sum of a layer in C: rows of weights of the inputs that are not zero, and identity edges.

The inputs of a window are listed by their row in the table of weights, and then added up together.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from steadyspike.deploy.standalone.c_memory import (
    BYTES,
    FIRST,
    element_type,
    is_whole,
    lists,
    weight_type,
    word_bits,
    words,
)
from steadyspike.deploy.standalone.c_writer import Writer
from steadyspike.deploy.standalone.program import Edge, Layer, Synapse

ROW_BYTES = 16384  # sums of a longer row of pixels would need too much stack


@dataclass
class Piece:
    """Returns declarations of the function, lines for one row of output pixels, and lines for one pixel."""

    declarations: list[str]
    row: list[str] = field(default_factory=list)
    pixel: list[str] = field(default_factory=list)


def lead(term: Synapse) -> int:
    """Returns the pixels left of the first one that taps of the first input column reach."""
    return term.kernel[1] - 1 - term.padding[1]


def goes_by_row(layer: Layer, term: Synapse, total: str) -> bool:
    """Returns True if the inputs of a column are added to all pixels of a row that they reach, see `add_synapse`."""
    return (
        term.kernel[1] > 1 and not is_whole(term) and lead(term) >= 0
        and term.groups == term.stride[1] == term.dilation[1] == 1 and layer.constant.shape[0] == 1
        and (term.size[2] + term.kernel[1] - 1) * layer.out.grid[0] * BYTES[total] <= ROW_BYTES
    )  # fmt: skip


def add_synapse(w: Writer, layer: Layer, term: Synapse, i: int, total: str, before: int) -> Piece:
    """Adds a convolution or linear layer to ``sum``, the sums of a pixel.

    A convolution without steps between its windows adds to ``sums``, a row of pixels of which ``before`` lie left of
    the first one: an input adds the weights of its row of taps, which are adjacent, to adjacent pixels.
    """
    (channels, height, width), (high, wide), outs = term.size, term.kernel, term.rows.shape[1]
    (sy, sx), (py, px), (dy, dx) = term.stride, term.padding, term.dilation
    source, bits = element_type(term.source, w.program.integer), term.source.kind == "bits"
    by_row, rows, target = goes_by_row(layer, term, total), term.rows, "sum"
    about = f"{term.name}: [{high} x {wide} x {channels} inputs][{outs} outputs]"
    if by_row:
        about = f"{term.name}: [{high} taps x {channels} inputs][{wide} taps from right to left x {outs} outputs]"
        rows = rows.reshape(high, wide, channels, outs)[:, ::-1].transpose(0, 2, 1, 3).reshape(-1, wide * outs)
        target = f"sums + (column + {before - lead(term)}) * {outs}"
    inputs, outs = rows.shape
    c_type, parts = weight_type(rows, layer.adds == "int"), lists(term, w.program.integer)
    weights = w.table("weight", term.name, np.concatenate([rows, 0 * rows[:1]]), c_type, f"{about}, and zeros")

    piece = Piece([f"    const {source} *in{i} = {w.memory.address(term.source)};"])
    for name, (part, _) in parts.items():
        piece.declarations.append(f"    {part} *{name}{i} = {w.memory.local(layer, name, i)};")
    first, index = f"ky * {channels}" if by_row else f"(ky * {wide} + kx) * {channels}", parts["list"][0]
    if bits:
        helper, pixel = w.use("list_spikes", source, index), f"(row * {width} + column) * {words(term.source)}"
        listing = f"count = {helper}(list{i}, count, in{i} + {pixel}, {channels}, {first});"
    else:
        sc, row, column = term.strides
        helper, pixel = w.use("list_numbers", index, source), f"row * {row} + column * {column}"
        listing = f"count = {helper}(list{i}, times{i}, count, in{i} + {pixel}, {channels}, {sc}, {first});"
    helper = w.use("add_rows", total, c_type, index, "uint8_t" if bits else source)
    given = f"{weights}, list{i}, {'NULL' if bits else f'times{i}'}, count"
    adding = f"{helper}({target}, {given}, {inputs}, {outs}, {term.groups}, {channels // term.groups});"
    rows_of_input = [
        f"for (ky = 0; ky < {high}; ++ky) {{",
        f"    const int row = {source_index('y', sy, py, 'ky', dy)};",
        f"    if (row < 0 || row >= {height}) continue;",
    ]
    if by_row:
        lines = ["int ky, count = 0;", *rows_of_input, f"    {listing}", "}", adding]
        piece.row = block(2, ["int column;", f"for (column = 0; column < {width}; ++column)", *block(0, lines)])
        return piece
    columns_of_input = [
        f"    for (kx = 0; kx < {wide}; ++kx) {{",
        f"        const int column = {source_index('x', sx, px, 'kx', dx)};",
        f"        if (column < 0 || column >= {width}) continue;",
        f"        {listing}",
        "    }",
    ]
    piece.pixel = block(3, ["int ky, kx, count = 0;", *rows_of_input, *columns_of_input, "}", adding])
    return piece


def block(level: int, lines: list[str]) -> list[str]:
    """Returns lines as a block of C."""
    indent = "    " * level
    return [f"{indent}{{", *(f"{indent}    {line}" for line in lines), f"{indent}}}"]


def source_index(out: str, stride: int, padding: int, tap: str, dilation: int) -> str:
    """Returns the row or column of the input that a tap of a window reads."""
    text = out if stride == 1 else f"{out} * {stride}"
    text += f" - {padding}" if padding else ""
    if tap == "0":
        return text
    return f"{text} + {tap}" if dilation == 1 else f"{text} + {tap} * {dilation}"


def add_edge(w: Writer, layer: Layer, edge: Edge, i: int, total: str) -> Piece:
    """Adds a value of the same shape to ``sum``."""
    source, channels = edge.source, layer.out.grid[0]
    piece = Piece([f"    const {element_type(source, w.program.integer)} *in{i} = {w.memory.address(source)};"])
    c_type = "float" if total in ("float", FIRST) else "int32_t"
    weight = None
    if edge.weight is not None and not (edge.weight == 1).all():
        index = "c" if edge.weight.shape[0] == 1 else f"pixel * {channels} + c"
        weight = w.constant("edge", f"{layer.name}_{source.name}", edge.weight, c_type, index)
    if source.kind == "bits":
        word = f"const uint32_t word = in{i}[pixel * {words(source)} + n];"
        added = f"sum[c] = ({total})(sum[c] + (word & {w.use('bit_of')}[k] ? {weight or 1} : 0));"
        piece.pixel = by_words(channels, word, [added])
        return piece
    times = "" if weight is None else f"{weight} * "
    added = f"sum[c] + {times}({total})in{i}[pixel * {channels} + c]"
    piece.pixel = [f"            for (c = 0; c < {channels}; ++c) sum[c] = ({total})({added});"]
    return piece


def by_words(channels: int, before: str, lines: list[str], after: str = "") -> list[str]:
    """Writes loops over the words of a pixel, with number ``n``, and over their bits ``k``, of channel ``c``.

    The inner loop starts at 0 and ends at a constant, so that compilers turn it into vectors.
    """
    bits = word_bits(channels)
    full, rest = divmod(channels, bits)
    code = ["int n, k;"]
    for start, end, count in ((0, full, bits), (full, full + 1, rest)):
        if start < end and count > 0:
            code += [
                f"for (n = {start}; n < {end}; ++n) {{",
                f"    {before}",
                f"    for (k = 0; k < {count}; ++k) {{",
                f"        const int c = n * {bits} + k;",
                *(f"        {line}" for line in lines),
                "    }",
                *([f"    {after}"] if after else []),
                "}",
            ]
    return block(3, code)
