"""The sum of a layer in C: rows of weights of the inputs that are not zero, and identity edges.

The inputs of a window are listed by their row in the table of weights (see `c_columns`), and then added up together.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from steadyspike.deploy.standalone.c_columns import band, goes_by_row, lead, listed_rows, lists
from steadyspike.deploy.standalone.c_types import FIRST, element_type, weight_type, word_bits, words
from steadyspike.deploy.standalone.c_writer import Writer
from steadyspike.deploy.standalone.program import Edge, Layer, Synapse


@dataclass
class Piece:
    """Declarations of the function; lines for one band of output rows, for one of these rows, and for one pixel."""

    declarations: list[str]
    band: list[str] = field(default_factory=list)
    row: list[str] = field(default_factory=list)
    pixel: list[str] = field(default_factory=list)


def add_synapse(w: Writer, layer: Layer, term: Synapse, i: int, total: str, before: int) -> Piece:
    """Adds a convolution or linear layer to ``sum``, the sums of a pixel.

    A convolution that goes by row adds to ``sums``, a row of pixels of which ``before`` lie left of the first one: an
    input adds the weights of its row of taps, which are adjacent, to adjacent pixels.
    """
    (channels, height, width), (high, wide), outs = term.size, term.kernel, term.rows.shape[1]
    source, bits = element_type(term.source, w.program.integer), term.source.kind == "bits"
    by_row, rows = goes_by_row(layer, term), term.rows
    about = f"{term.name}: [{high} x {wide} x {channels} inputs][{outs} outputs]"
    if by_row:
        about = f"{term.name}: [{high} taps x {channels} inputs][{wide} taps from right to left x {outs} outputs]"
        rows = rows.reshape(high, wide, channels, outs)[:, ::-1].transpose(0, 2, 1, 3).reshape(-1, wide * outs)
    c_type, parts = weight_type(rows, layer.adds == "int"), lists(layer, term, w.program.integer)
    weights = w.table("weight", term.name, rows, c_type, about)

    piece = Piece([f"    const {source} *in{i} = {w.memory.address(term.source)};"])
    for name, (part, _) in parts.items():
        piece.declarations.append(f"    {part} *{name}{i} = {w.memory.local(layer, name, i)};")
    index = parts["list"][0]
    if bits:
        helper, pixel = w.use("list_spikes", source, index), f"(row * {width} + column) * {words(term.source)}"
        listing = f"count = {helper}(list{i}, count, in{i} + {pixel}, {channels}, "
    else:
        sc, row, column = term.strides
        helper, pixel = w.use("list_numbers", index, source), f"row * {row} + column * {column}"
        listing = f"count = {helper}(list{i}, times{i}, count, in{i} + {pixel}, {channels}, {sc}, "
    helper = w.use("add_rows", total, c_type, index, "uint8_t" if bits else source)
    if by_row:
        adding = f"{helper}(sums + (column + {before - lead(term)}) * {outs}, {weights}"
        _add_by_row(w, layer, term, piece, i, listing, adding)
        return piece
    (sy, sx), (py, px), (dy, dx) = term.stride, term.padding, term.dilation
    piece.pixel = block(3, [
        "int ky, kx, count = 0;",
        f"for (ky = 0; ky < {high}; ++ky) {{",
        f"    const int row = {source_index('y', sy, py, 'ky', dy)};",
        f"    if (row < 0 || row >= {height}) continue;",
        f"    for (kx = 0; kx < {wide}; ++kx) {{",
        f"        const int column = {source_index('x', sx, px, 'kx', dx)};",
        f"        if (column < 0 || column >= {width}) continue;",
        f"        {listing}(ky * {wide} + kx) * {channels});",
        "    }",
        "}",
        f"{helper}(sum, {weights}, list{i}, {'NULL' if bits else f'times{i}'}, count, 0, {outs}, {term.groups}, "
        f"{channels // term.groups});",
    ])  # fmt: skip
    return piece


def _add_by_row(w: Writer, layer: Layer, term: Synapse, piece: Piece, i: int, listing: str, adding: str) -> None:
    """Lists rows ``first`` to ``last - 1`` of the input for a band, and adds rows ``from`` to ``to - 1`` to a row."""
    (channels, height, width), high, outs = term.size, term.kernel[0], term.kernel[1] * term.rows.shape[1]
    integer, sy, py = w.program.integer, term.stride[0], term.padding[0]
    index, start = lists(layer, term, integer)["starts"][0], f"column * {listed_rows(layer, term, integer) + 1} + "
    first, last = "0", str(height)
    if band(layer, integer) < layer.out.grid[1]:
        first = largest(source_index("band", sy, py, "0", 1), first)
        last = smallest(source_index("(end - 1)", sy, py, str(high), 1), last)
    piece.band = [
        f"        const int first{i} = {first}, last{i} = {last};",
        *block(2, [
            "int row, column, count = 0;",
            f"for (column = 0; column < {width}; ++column) {{",
            f"    for (row = first{i}; row < last{i}; ++row) {{",
            f"        starts{i}[{start}row - first{i}] = ({index})count;",
            f"        {listing}(row - first{i}) * {channels});",
            "    }",
            f"    starts{i}[{start}row - first{i}] = ({index})count;",
            "}",
        ]),
    ]  # fmt: skip
    times = "NULL" if term.source.kind == "bits" else f"times{i} + begin"
    piece.row = block(2, [
        f"const int top = {source_index('y', sy, py, '0', 1)}, past = top + {high};",
        f"const int from = {largest('top', f'first{i}')}, to = {smallest('past', f'last{i}')};",
        "int column;",
        f"for (column = 0; column < {width} && from < to; ++column) {{",
        f"    const int begin = (int)starts{i}[{start}from - first{i}];",
        f"    const int count = (int)starts{i}[{start}to - first{i}] - begin;",
        f"    if (count > 0) {adding}, list{i} + begin, {times}, count, (top - first{i}) * {channels}, "
        f"{outs}, 1, {channels});",
        "}",
    ])  # fmt: skip


def largest(a: str, b: str) -> str:
    return f"{a} > {b} ? {a} : {b}"


def smallest(a: str, b: str) -> str:
    return f"{a} < {b} ? {a} : {b}"


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
