"""Layers in C: for every row of pixels or every pixel the sum of its terms, then the neurons."""

from __future__ import annotations

import numpy as np

from steadyspike.deploy.standalone.c_columns import band, lead, rows_of
from steadyspike.deploy.standalone.c_names import comment
from steadyspike.deploy.standalone.c_terms import add_edge, add_synapse, by_words
from steadyspike.deploy.standalone.c_types import (
    BYTES,
    FIRST,
    element_type,
    potential_type,
    sum_type,
    word_bits,
    word_type,
    words,
)
from steadyspike.deploy.standalone.c_writer import Writer, reads_frame, shape_text, term_text
from steadyspike.deploy.standalone.program import DECAY, LIMIT, Layer, Neurons, Synapse


def layer_function(w: Writer, layer: Layer, function: str) -> str:
    """Writes the function of one layer."""
    total, channels = sum_type(layer), layer.out.grid[0]
    height, width = layer.out.grid[1:]
    about = [f"{layer.name} {shape_text(layer.out)}"]
    about += [f"  {term_text(t)}" if isinstance(t, Synapse) else f"  + {t.source.name}" for t in layer.terms]
    by_row, listing = rows_of(layer), []
    before = max((lead(t) for t in by_row), default=0)
    pixels = before + max([0, *(max(width, t.size[2] + t.kernel[1] - 1 - lead(t)) for t in by_row)])
    start = _start(w, layer, total)
    if by_row:
        declarations = [f"    {total} sums[{pixels * channels}];"]
        row = [
            f"        for (x = 0; x < {pixels}; ++x) {{",
            f"            for (c = 0; c < {channels}; ++c) sums[x * {channels} + c] = {start};",
            "        }",
        ]
        body = [f"            {total} *sum = sums + {f'(x + {before})' if before else 'x'} * {channels};"]
    else:
        declarations, row, pixels = [f"    {total} sum[{channels}];"], [], 1
        body = [f"            for (c = 0; c < {channels}; ++c) sum[c] = {start};"]
    for i, term in enumerate(layer.terms):
        if isinstance(term, Synapse):
            piece = add_synapse(w, layer, term, i, total, before)
        else:
            piece = add_edge(w, layer, term, i, total)
        declarations += piece.declarations
        listing += piece.band
        row += piece.row
        body += piece.pixel
    body += _after(w, layer, total)
    if layer.neurons is None:
        declarations.append(f"    {element_type(layer.out, w.program.integer)} *out = {w.memory.address(layer.out)};")
        body += _store(w, layer)
    else:
        body += _fire(w, layer, layer.neurons, total, declarations)
    w.stack = max(w.stack, channels * (pixels * BYTES[total] + (0 if layer.rescale is None else 4)))
    frame = ", const float *frame" if reads_frame(layer) else ""
    lines = [*(f"/* {comment(line)} */" for line in about), f"LAYER {function}({w.name}_net *net{frame})", "{"]
    lines += [*declarations, f"    int y, x, c{', band' if band(layer, w.program.integer) < height else ''};", ""]
    if any("pixel" in line for line in body):
        body.insert(0, f"            const int pixel = y * {width} + x;")
    body = [*row, f"        for (x = 0; x < {width}; ++x) {{", *body, "        }", "    }"]
    lines += in_bands(listing, body, height, band(layer, w.program.integer))
    if layer.neurons is not None and layer.out.kind == "bits":
        number = w.program.layers.index(layer)
        size = height * width * words(layer.out)
        seen = f"{number}, {w.memory.address(layer.out)}, {size} * sizeof({word_type(layer.out)})"
        lines.append(f"    {w.name.upper()}_WATCH({seen});")
    return "\n".join([*lines, "}", ""])


def in_bands(listing: list[str], body: list[str], height: int, rows: int) -> list[str]:
    """Writes the loop over rows of pixels; after every ``rows`` of them the inputs of the next are listed."""
    if rows == height:
        return [*(line.removeprefix("    ") for line in listing), f"    for (y = 0; y < {height}; ++y) {{", *body]
    lines = [*listing, "        for (y = band; y < end; ++y) {", *(f"    {line}" for line in body)]
    end = f"const int end = band < {height - rows} ? band + {rows} : {height};"
    return [f"    for (band = 0; band < {height}; band += {rows}) {{", f"        {end}", *lines, "    }"]


def _start(w: Writer, layer: Layer, total: str) -> str:
    c_type = "float" if total in ("float", FIRST) else total
    index = "c" if layer.constant.shape[0] == 1 else f"pixel * {layer.out.grid[0]} + c"
    return w.constant("bias", layer.name, layer.constant, c_type, index)


def _after(w: Writer, layer: Layer, total: str) -> list[str]:
    """Writes gain and bias per step, rectification, and the rounding to integers of the first layer."""
    lines, channels = [], layer.out.grid[0]
    if layer.gain is not None:
        step = f"(int)net->step * {channels} + c" if layer.gain.shape[0] > 1 else "c"
        text = f"sum[c] * {w.table('gain', layer.name, layer.gain, 'float', layer.name)}[{step}]"
        if layer.bias is not None:
            step = f"(int)net->step * {channels} + c" if layer.bias.shape[0] > 1 else "c"
            text += f" + {w.table('shift', layer.name, layer.bias, 'float', layer.name)}[{step}]"
        lines.append(f"            for (c = 0; c < {channels}; ++c) sum[c] = {text};")
    if layer.relu:
        lines.append(f"            for (c = 0; c < {channels}; ++c) if (sum[c] < 0) sum[c] = 0;")
    return lines


def _current(w: Writer, layer: Layer) -> str:
    if layer.rescale is None:
        return "sum[c]"
    return f"{w.use('to_integer')}((double)sum[c] * {layer.rescale!r})"


def _store(w: Writer, layer: Layer) -> list[str]:
    channels, out = layer.out.grid[0], layer.out
    c_type = element_type(out, w.program.integer)
    cast = f"({c_type})" if c_type != sum_type(layer) else ""
    return [f"            for (c = 0; c < {channels}; ++c) out[pixel * {channels} + c] = {cast}{_current(w, layer)};"]


def _fire(w: Writer, layer: Layer, n: Neurons, total: str, declarations: list[str]) -> list[str]:
    """Writes charge, fire and reset of a pixel's neurons."""
    integer, channels = w.program.integer, layer.out.grid[0]
    potential = potential_type(n, integer)
    largest = float(n.keep.max()) * n.limit + float(n.gain.max()) * max(abs(layer.low), abs(layer.high))
    wide = "float" if not integer else "int32_t" if largest < 2**31 else "int64_t"
    narrow = "float" if not integer else "int32_t"
    v = w.constant("threshold", n.potential, n.threshold, narrow, "c")
    keep, gain = (w.constant(what, n.potential, t, narrow, "c") for what, t in (("keep", n.keep), ("gain", n.gain)))
    declarations.append(f"    {potential} *potential = net->{w.names[n.potential]}_u;")
    before, current = [], "sum[c]"
    if layer.rescale is not None:  # a loop of its own, which compilers turn into vectors
        declarations.append(f"    int32_t current[{channels}];")
        before.append(f"            for (c = 0; c < {channels}; ++c) current[c] = {_current(w, layer)};")
        current = "current[c]"
    if not integer:
        current = "sum[c]" if bool(np.all(n.gain == 1)) else f"{gain} * sum[c]"
        lines = [f"const float m = {keep} * potential[pixel * {channels} + c] + {current};"]
    else:
        u = f"({wide})potential[pixel * {channels} + c]"
        lines = [f"const {wide} charge = {keep} * {u} + {gain} * ({wide}){current};"]
        text = f"{'(int32_t)' if wide == 'int64_t' else ''}(charge / {DECAY})"
        if n.limit >= 2**31 - 1:
            most = f"{LIMIT}LL * {DECAY}"
            text = f"(int32_t)(charge > {most} ? {LIMIT} : charge < -{most} ? -{LIMIT} : charge / {DECAY})"
        lines.append(f"const int32_t m = {text};")
    if n.emit != "potential" or n.reset != "none":
        lines.append(f"const int spike = m {'>' if n.strict else '>='} {v} ? 1 : 0;")
    rest = {"soft": f"m - ({narrow})spike * {v}", "hard": "spike ? 0 : m", "none": "m"}[n.reset]
    cast = f"({potential})" if potential != narrow else ""
    lines.append(f"potential[pixel * {channels} + c] = {cast}({rest});")
    declarations.append(f"    {element_type(layer.out, integer)} *out = {w.memory.address(layer.out)};")
    if n.emit == "potential":
        lines.append(f"out[pixel * {channels} + c] = m;")
        return [*before, f"            for (c = 0; c < {channels}; ++c) {{", *(16 * " " + line for line in lines),
                "            }"]  # fmt: skip
    cast = "" if word_bits(channels) == 32 else f"({word_type(layer.out)})"
    lines.append(f"word |= (0u - (uint32_t)spike) & {w.use('bit_of')}[k];")
    after = f"out[pixel * {words(layer.out)} + n] = {cast}word;"
    return [*before, *by_words(channels, "uint32_t word = 0;", lines, after)]
