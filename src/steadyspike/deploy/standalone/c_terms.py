"""The sum of a layer in C: rows of weights of the neurons that fired, dense products, identity edges.

A convolution without steps between its windows adds up one row of output pixels at a time (`add_by_row`): a spike adds
the weights of its whole row of taps, which are adjacent, to adjacent pixels. All other terms are added pixel by pixel.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from steadyspike.deploy.standalone.c_memory import BYTES, FIRST, element_type, weight_type, word_bits, word_type, words
from steadyspike.deploy.standalone.c_writer import Writer
from steadyspike.deploy.standalone.program import Buffer, Edge, Layer, Synapse

LIST = 1024  # number of rows that are collected before they are added
ROW_BYTES = 16384  # sums of a longer row of pixels would need too much stack


@dataclass
class Piece:
    """Returns declarations of the function, lines for one pixel, and bytes of local arrays."""

    declarations: list[str]
    lines: list[str] = field(default_factory=list)
    stack: int = 0


def _sources(w: Writer, source: Buffer, i: int) -> list[str]:
    c_type = element_type(source, w.program.integer)
    lines = [f"    const {c_type} *in{i} = {w.memory.address(source)};"]
    if source.kind == "counts":
        lines.append(f"    const {word_type(source)} *some{i} = {w.memory.mask(source)};")
    return lines


def add_synapse(w: Writer, layer: Layer, term: Synapse, i: int, total: str) -> Piece:
    """Adds a convolution or linear layer to ``sum``."""
    integer = layer.adds == "int"
    c_type = weight_type(term.rows, integer)
    about = f"{term.name}: [{term.kernel[0]} x {term.kernel[1]} x {term.size[0]} inputs][{term.rows.shape[1]} outputs]"
    weights = w.table("weight", term.name, term.rows, c_type, about)
    piece = Piece(_sources(w, term.source, i))
    if term.source.kind not in ("bits", "counts"):
        inner = _dense(layer, term, i, weights, total)
    elif term.groups > 1:
        inner = _grouped(w, term, i, weights, total)
    else:
        return _listed(w, term, i, weights, c_type, total, piece)
    piece.lines = _over_taps(term, i, inner)
    return piece


def lead(term: Synapse) -> int:
    """Pixels left of the first one that taps of the first input column reach."""
    return term.kernel[1] - 1 - term.padding[1]


def goes_by_row(layer: Layer, term: Synapse, total: str) -> bool:
    """True if a term can be added by `add_by_row`."""
    wide, pixels = term.kernel[1], term.size[2] + term.kernel[1] - 1
    whole = term.kernel == term.size[1:] and term.padding == (0, 0)
    return (
        wide > 1 and not whole and lead(term) >= 0 and term.groups == term.stride[1] == term.dilation[1] == 1
        and layer.constant.shape[0] == 1 and pixels * layer.out.grid[0] * BYTES[total] <= ROW_BYTES
    )  # fmt: skip


def add_by_row(w: Writer, layer: Layer, term: Synapse, i: int, total: str, before: int) -> Piece:
    """Adds a convolution to ``sums``, a row of pixels of which ``before`` lie left of the first one."""
    (high, wide), (channels, height, width), outs = term.kernel, term.size, term.rows.shape[1]
    c_type = weight_type(term.rows, layer.adds == "int")
    # [row of taps, input channel, taps from right to left, output channel]
    rows = term.rows.reshape(high, wide, channels, outs)[:, ::-1].transpose(0, 2, 1, 3)
    about = f"{term.name}: [{high} taps][{channels} inputs][{wide} taps from right to left][{outs} outputs]"
    weights = w.table("weight", term.name, np.ascontiguousarray(rows), c_type, about)
    piece = Piece(_sources(w, term.source, i))
    shift = before - lead(term)
    target = f"sums + {'column' if shift == 0 else f'(column + {shift})'} * {outs}"
    if term.source.kind in ("bits", "counts"):
        start, collect, call = _list(w, term, i, weights, c_type, total, piece, channels, wide * outs, target)
        loop = _bits_loop(term, i, collect("ky"))
        inner = [f"                    {start}", *_braced(loop), f"                    {call}"]
    else:
        sc, sy, sx = term.strides
        at = f"row * {sy} + column * {sx} + k * {sc}"
        cast = "" if total == "float" else f"({total})"
        inner = [
            "                    int k, o;",
            f"                    for (k = 0; k < {channels}; ++k) {{",
            f"                        const {total} value = {cast}in{i}[{at}];",
            "                        if (value != 0) {",
            f"                            const {c_type} *row_of = {weights} + (ky * {channels} + k) * {wide * outs};",
            f"                            {total} *target = {target};",
            f"                            for (o = 0; o < {wide * outs}; ++o) target[o] += value * {cast}row_of[o];",
            "                        }",
            "                    }",
        ]  # fmt: skip
    at_line = [f"                    const int at = row * {width} + column;"] * any("[at" in line for line in inner)
    row = source_index("y", term.stride[0], term.padding[0], "ky", term.dilation[0])
    piece.lines = [
        "        {",
        "            int ky, column;",
        f"            for (ky = 0; ky < {high}; ++ky) {{",
        f"                const int row = {row};",
        f"                if (row < 0 || row >= {height}) continue;",
        f"                for (column = 0; column < {width}; ++column) {{",
        *at_line,
        *inner,
        "                }",
        "            }",
        "        }",
    ]
    return piece


def _over_taps(term: Synapse, i: int, inner: list[str]) -> list[str]:
    """Writes the loops over a kernel, with ``at`` as the input pixel and ``tap`` as its number in the kernel."""
    (high, wide), (sy, sx), (py, px), (dy, dx) = term.kernel, term.stride, term.padding, term.dilation
    _, height, width = term.size

    if (high, wide) == (1, 1) and (py, px) == (0, 0):
        row, column = (out if s == 1 else f"{out} * {s}" for out, s in (("y", sy), ("x", sx)))
        at = "pixel" if (sy, sx) == (1, 1) and width > 1 else f"({row}) * {width} + {column}"
        at = "0" if (height, width) == (1, 1) else at
        return ["            {", f"                const int at = {at}, tap = 0;", *_indent(inner, -1), "            }"]
    whole = term.kernel == (height, width) and term.padding == (0, 0)
    if whole:
        return [
            "            {", "                int tap;",
            f"                for (tap = 0; tap < {high * wide}; ++tap) {{",
            "                    const int at = tap;", *inner, "                }", "            }",
        ]  # fmt: skip
    return [
        "            {",
        "                int ky, kx;",
        f"                for (ky = 0; ky < {high}; ++ky) {{",
        f"                    const int row = {source_index('y', sy, py, 'ky', dy)};",
        f"                    if (row < 0 || row >= {height}) continue;",
        f"                    for (kx = 0; kx < {wide}; ++kx) {{",
        f"                        const int column = {source_index('x', sx, px, 'kx', dx)};",
        f"                        const int at = row * {width} + column, tap = ky * {wide} + kx;",
        f"                        if (column < 0 || column >= {width}) continue;",
        *_indent(inner, 1),
        "                    }",
        "                }",
        "            }",
    ]


def source_index(out: str, stride: int, padding: int, tap: str, dilation: int) -> str:
    """Returns the row or column of the input that a tap of a window reads."""
    text = out if stride == 1 else f"{out} * {stride}"
    text += f" - {padding}" if padding else ""
    return f"{text} + {tap}" if dilation == 1 else f"{text} + {tap} * {dilation}"


def _indent(lines: list[str], levels: int) -> list[str]:
    return [("    " * levels + line) if levels > 0 else line[4:] for line in lines]


def _dense(layer: Layer, term: Synapse, i: int, weights: str, total: str) -> list[str]:
    """Writes the code for real inputs: each nonzero input multiplies its row."""
    channels, outs = term.size[0], term.rows.shape[1]
    sc, sy, sx = term.strides
    _, _, width = term.size
    row, column = f"(at / {width})", f"(at % {width})"
    where = f"{row} * {sy} + {column} * {sx}"
    if sy == sx * width:
        where = "at" if sx == 1 else f"at * {sx}"
    channel = "k" if sc == 1 else f"k * {sc}"
    offset = "" if term.groups == 1 else f" + k / {channels // term.groups} * {outs}"
    cast = "" if total == "float" else f"({total})"
    return [
        "                    int k, o;",
        f"                    for (k = 0; k < {channels}; ++k) {{",
        f"                        const {total} value = {cast}in{i}[{where} + {channel}];",
        "                        if (value != 0) {",
        f"                            const {_row(term, layer)} *row_of = {weights} + (tap * {channels} + k) * {outs};",
        f"                            {total} *target = sum{offset};",
        f"                            for (o = 0; o < {outs}; ++o) target[o] += value * {cast}row_of[o];",
        "                        }",
        "                    }",
    ]


def _row(term: Synapse, layer: Layer) -> str:
    return weight_type(term.rows, layer.adds == "int")


def _bits_loop(term: Synapse, i: int, inner: list[str]) -> list[str]:
    """Writes code that runs ``inner`` with ``k`` as the channel of every set bit of a pixel."""
    source = term.source
    bits, count = word_bits(source.grid[0]), words(source)
    name = f"in{i}" if source.kind == "bits" else f"some{i}"
    if count == 1:
        return [
            f"                    uint32_t left = {name}[at];",
            "                    for (; left != 0; left &= left - 1) {",
            "                        const int k = lowest_bit(left);",
            *inner,
            "                    }",
        ]
    return [
        "                    int n;",
        f"                    for (n = 0; n < {count}; ++n) {{",
        f"                        uint32_t left = {name}[at * {count} + n];",
        "                        for (; left != 0; left &= left - 1) {",
        f"                            const int k = n * {bits} + lowest_bit(left);",
        *_indent(inner, 1),
        "                        }",
        "                    }",
    ]


def _grouped(w: Writer, term: Synapse, i: int, weights: str, total: str) -> list[str]:
    w.use("lowest_bit")
    channels, outs = term.size[0], term.rows.shape[1]
    times = "" if term.source.kind == "bits" else f"({total})in{i}[at * {channels} + k] * "
    c_type = weight_type(term.rows, total.startswith("int"))
    return _bits_loop(term, i, [
        f"                        const {c_type} *row_of = {weights} + (tap * {channels} + k) * {outs};",
        f"                        {total} *target = sum + k / {channels // term.groups} * {outs};",
        "                        int o;",
        f"                        for (o = 0; o < {outs}; ++o) target[o] = ({total})(target[o] + {times}row_of[o]);",
    ])  # fmt: skip


def _listed(w: Writer, term: Synapse, i: int, weights: str, c_type: str, total: str, piece: Piece) -> Piece:
    """Writes code that collects the rows of everything that fired and adds several at a time."""
    channels, most = term.size[0], term.rows.shape[0]
    size = most if most <= LIST else max(LIST, channels)
    start, collect, call = _list(w, term, i, weights, c_type, total, piece, size, term.rows.shape[1], "sum")
    loop = _bits_loop(term, i, collect("tap"))
    if most > size:
        loop = [f"                    if (count > {size - channels}) {{", f"                        {call}",
                "                        count = 0;", "                    }", *_braced(loop)]  # fmt: skip
    piece.lines = [f"            {start}", *_over_taps(term, i, loop), f"            {call}"]
    return piece


def _list(
    w: Writer, term: Synapse, i: int, weights: str, c_type: str, total: str, piece: Piece, size: int, length: int,
    target: str,
) -> tuple[str, Callable[[str], list[str]], str]:  # fmt: skip
    """A list of rows of weights: how it starts, how channel k of a tap enters it, and how its rows are added."""
    w.use("lowest_bit")
    channels = term.size[0]
    index = "uint16_t" if term.rows.shape[0] <= 2**16 else "uint32_t"
    counted = term.source.kind == "counts"
    piece.declarations.append(f"    {index} rows{i}[{size}];")
    piece.stack = size * (2 if index == "uint16_t" else 4)
    types, lists = [total, c_type, index], f"rows{i}"
    if counted:
        times = element_type(term.source, w.program.integer)
        piece.declarations.append(f"    {times} times{i}[{size}];")
        piece.stack += size * {"uint8_t": 1, "uint16_t": 2}.get(times, 4)
        types, lists = [*types, times], f"rows{i}, times{i}"
    helper = w.use(f"add_{'counted_' if counted else ''}rows<{','.join(types)}>")
    call = f"{_function(helper)}({target}, {weights}, {lists}, count, {length});"

    def collect(tap: str) -> list[str]:
        lines = [f"                        times{i}[count] = in{i}[at * {channels} + k];"] if counted else []
        return [*lines, f"                        rows{i}[count++] = ({index})({tap} * {channels} + k);"]

    return "count = 0;", collect, call


def _braced(lines: list[str]) -> list[str]:
    return ["                    {", *_indent(lines, 1), "                    }"]


def _function(helper: str) -> str:
    name, _, types = helper.partition("<")
    return "_".join([name, *(t.removesuffix("_t") for t in types.rstrip(">").split(","))])


def add_edge(w: Writer, layer: Layer, edge: Edge, i: int, total: str) -> Piece:
    """Adds a value of the same shape to ``sum``."""
    source, channels = edge.source, layer.out.grid[0]
    piece = Piece(_sources(w, source, i) if source.kind != "counts" else _sources(w, source, i)[:1])
    c_type = "float" if total in ("float", FIRST) else "int32_t"
    weight = None
    if edge.weight is not None and not (edge.weight == 1).all():
        index = "k" if edge.weight.shape[0] == 1 else f"pixel * {channels} + k"
        weight = w.constant("edge", f"{layer.name}_{source.name}", edge.weight, c_type, index)
    if source.kind == "bits":
        w.use("lowest_bit")
        one = weight or ("1.0f" if total == "float" else "1")
        like = Synapse("", source, (1, 1, 1), source.grid, (1, 1), (1, 1), (0, 0), (1, 1), 1, edge.weight)  # type: ignore[arg-type]
        loop = _bits_loop(like, i, [f"                        sum[k] = ({total})(sum[k] + {one});"])
        at = "pixel" if source.grid[1] * source.grid[2] > 1 else "0"
        piece.lines = ["            {", f"                const int at = {at};", *_indent(loop, -1), "            }"]
        return piece
    times = "" if weight is None else f"{weight} * "
    added = f"sum[k] + {times}({total})in{i}[pixel * {channels} + k]"
    piece.lines = [
        "            {",
        "                int k;",
        f"                for (k = 0; k < {channels}; ++k) sum[k] = ({total})({added});",
        "            }",
    ]
    return piece
