"""Layers in C: for every row of pixels or every pixel the sum of its terms, then the neurons."""

from __future__ import annotations

import numpy as np

from steadyspike.deploy.standalone.c_memory import (
    BYTES,
    FIRST,
    element_type,
    integer_type,
    potential_type,
    word_bits,
    word_type,
    words,
)
from steadyspike.deploy.standalone.c_names import comment
from steadyspike.deploy.standalone.c_terms import add_by_row, add_edge, add_synapse, goes_by_row, lead
from steadyspike.deploy.standalone.c_writer import Writer, reads_frame, shape_text, term_text
from steadyspike.deploy.standalone.program import DECAY, LIMIT, Buffer, Layer, Neurons, Synapse


def sum_type(layer: Layer) -> str:
    """Returns the C type in which a layer adds up."""
    if layer.adds == "float":
        return "float"
    if layer.adds == "first":
        return FIRST
    if layer.adds == "count":
        return "int32_t"
    return integer_type(min(layer.low, -(2.0**15)), max(layer.high, 2.0**15 - 1))


def layer_function(w: Writer, layer: Layer, function: str) -> str:
    """Writes the function of one layer."""
    total, channels = sum_type(layer), layer.out.grid[0]
    height, width = layer.out.grid[1:]
    about = [f"{layer.name} {shape_text(layer.out)}"]
    about += [f"  {term_text(t)}" if isinstance(t, Synapse) else f"  + {t.source.name}" for t in layer.terms]
    by_row = [t for t in layer.terms if isinstance(t, Synapse) and goes_by_row(layer, t, total)]
    before = max((lead(t) for t in by_row), default=0)
    start = _start(w, layer, total)
    if by_row:
        pixels = before + max(width, *(t.size[2] + t.kernel[1] - 1 - lead(t) for t in by_row))
        declarations, stack = [f"    {total} sums[{pixels * channels}];"], pixels * channels * BYTES[total]
        row = [
            f"        for (x = 0; x < {pixels}; ++x) {{",
            f"            for (c = 0; c < {channels}; ++c) sums[x * {channels} + c] = {start};",
            "        }",
        ]
        body = [f"            {total} *sum = sums + {f'(x + {before})' if before else 'x'} * {channels};"]
    else:
        declarations, stack = [f"    {total} sum[{channels}];"], channels * BYTES[total]
        row, body = [], [f"            for (c = 0; c < {channels}; ++c) sum[c] = {start};"]
    for i, term in enumerate(layer.terms):
        if not isinstance(term, Synapse):
            piece = add_edge(w, layer, term, i, total)
        elif term in by_row:
            piece = add_by_row(w, layer, term, i, total, before)
        else:
            piece = add_synapse(w, layer, term, i, total)
        declarations += piece.declarations
        if isinstance(term, Synapse) and term in by_row:
            row += piece.lines
        else:
            body += piece.lines
        stack += piece.stack
    body += _after(w, layer, total)
    if layer.neurons is None:
        declarations.append(f"    {element_type(layer.out, w.program.integer)} *out = {w.memory.address(layer.out)};")
        body += _store(w, layer, declarations)
    else:
        body += _fire(w, layer, layer.neurons, total, declarations)
        stack += 0 if layer.rescale is None else 4 * channels
    w.stack = max(w.stack, stack)
    frame = ", const float *frame" if reads_frame(layer) else ""
    lines = [*(f"/* {comment(line)} */" for line in about), f"LAYER {function}({w.name}_net *net{frame})", "{"]
    counter = ", count" if any("count = 0;" in line for line in (*row, *body)) else ""
    lines += [*declarations, f"    int y, x, c{counter};", ""]
    lines += [f"    for (y = 0; y < {height}; ++y) {{", *row, f"        for (x = 0; x < {width}; ++x) {{"]
    if any("pixel" in line for line in body):
        lines.append(f"            const int pixel = y * {width} + x;")
    lines += [*body, "        }", "    }"]
    if layer.neurons is not None and layer.out.kind == "bits":
        number = w.program.layers.index(layer)
        size = height * width * words(layer.out)
        seen = f"{number}, {w.memory.address(layer.out)}, {size} * sizeof({word_type(layer.out)})"
        lines.append(f"    {w.name.upper()}_WATCH({seen});")
    return "\n".join([*lines, "}", ""])


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


def _store(w: Writer, layer: Layer, declarations: list[str]) -> list[str]:
    channels, out = layer.out.grid[0], layer.out
    c_type = element_type(out, w.program.integer)
    cast = f"({c_type})" if c_type != sum_type(layer) else ""
    lines = [f"            for (c = 0; c < {channels}; ++c) out[pixel * {channels} + c] = {cast}{_current(w, layer)};"]
    if out.kind == "counts":
        declarations.append(f"    {word_type(out)} *mask = {w.memory.mask(out)};")
        lines += pack_bits("mask", out.grid[0], "sum[c] != 0")
    return lines


def pack_bits(name: str, channels: int, fired: str) -> list[str]:
    """Writes a pixel's bits from a condition on channel c."""
    bits = word_bits(channels)
    count = -(-channels // bits)
    last = channels if count == 1 else bits
    limit = "" if channels % bits == 0 or count == 1 else f" && i * {bits} + c < {channels}"
    test = fired if count == 1 else fired.replace("[c]", f"[i * {bits} + c]")
    lines = [f"            for (i = 0; i < {count}; ++i) {{", "                uint32_t word = 0;"]
    lines = lines if count > 1 else ["            {", "                uint32_t word = 0;"]
    index = f"pixel * {count} + i" if count > 1 else "pixel"
    cast = "" if bits == 32 else f"(uint{bits}_t)"
    return [
        *(["            int i;"] if count > 1 else []),
        *lines,
        f"                for (c = 0; c < {last}{limit}; ++c) word |= (uint32_t)({test}) << c;",
        f"                {name}[{index}] = {cast}word;",
        "            }",
    ]


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
    after = {"soft": f"m - (spike ? {v} : 0)", "hard": "spike ? 0 : m", "none": "m"}[n.reset]
    cast = f"({potential})" if potential != narrow else ""
    lines.append(f"potential[pixel * {channels} + c] = {cast}({after});")
    declarations.append(f"    {element_type(layer.out, integer)} *out = {w.memory.address(layer.out)};")
    if n.emit == "potential":
        lines.append(f"out[pixel * {channels} + c] = m;")
        return [*before, f"            for (c = 0; c < {channels}; ++c) {{", *(16 * " " + line for line in lines),
                "            }"]  # fmt: skip
    return [*before, *_fire_words(layer.out, lines)]


def _fire_words(out: Buffer, lines: list[str]) -> list[str]:
    """Runs ``lines`` for every channel of a pixel and collects their ``spike`` in words of bits."""
    channels, bits, count = out.grid[0], word_bits(out.grid[0]), words(out)
    cast = "" if bits == 32 else f"({word_type(out)})"
    if count == 1:
        shift, loop = "c", f"for (c = 0; c < {channels}; ++c)"
    else:
        last = "" if channels % bits == 0 else f" && c < {channels}"
        shift, loop = f"c % {bits}", f"for (c = i * {bits}; c < i * {bits} + {bits}{last}; ++c)"
    one = [
        "uint32_t word = 0;",
        f"{loop} {{",
        *(f"    {line}" for line in (*lines, f"word |= (uint32_t)spike << {shift};")),
        "}",
        f"out[pixel{'' if count == 1 else f' * {count} + i'}] = {cast}word;",
    ]
    if count == 1:
        return ["            {", *(16 * " " + line for line in one), "            }"]
    return [
        "            {", "                int i;", f"                for (i = 0; i < {count}; ++i) {{",
        *(20 * " " + line for line in one), "                }", "            }",
    ]  # fmt: skip
