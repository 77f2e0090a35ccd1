"""Pools, copies and products of spikes in C."""

from __future__ import annotations

from steadyspike.deploy.standalone.c_names import comment, number
from steadyspike.deploy.standalone.c_terms import source_index
from steadyspike.deploy.standalone.c_types import FIRST, element_type, word_bits, word_type, words
from steadyspike.deploy.standalone.c_writer import Writer, reads_frame, shape_text
from steadyspike.deploy.standalone.program import Buffer, Combine, Pool, Strided


def pool_function(w: Writer, pool: Pool, function: str) -> str:
    """Writes a pool: the OR, count or maximum of windows."""
    integer, channels = w.program.integer, pool.out.grid[0]
    c_type, source_type = element_type(pool.out, integer), element_type(pool.source, integer)
    declarations = [
        f"    const {source_type} *in = {w.memory.address(pool.source)};",
        f"    {c_type} *out = {w.memory.address(pool.out)};",
    ]
    if pool.out.kind == "bits":
        start, inner, after = _or(pool)
    else:
        total = "int32_t" if pool.out.kind == "counts" or c_type.startswith("int") else c_type
        declarations.append(f"    {total} sum[{channels}];")
        start, inner = _numbers(w, pool, total)
        scaled = "" if pool.factor == 1 else f" * {number(pool.factor, 'double' if total == FIRST else 'float')}"
        cast = f"({c_type})" if c_type != total else ""
        after = [f"            for (c = 0; c < {channels}; ++c) out[pixel * {channels} + c] = {cast}(sum[c]{scaled});"]
    (high, wide), (_, height, width) = pool.kernel, pool.source.grid
    (sy, sx), (py, px), (dy, dx) = pool.stride, pool.padding, pool.dilation
    what = "sum" if pool.takes == "sum" else "OR" if pool.out.kind == "bits" else "maximum"
    about = f"{pool.name} {shape_text(pool.out)}: {what} of {high} x {wide} of "
    about += f"{pool.source.name} {shape_text(pool.source)}"
    lines = [
        f"/* {comment(about)} */",
        f"LAYER {function}({w.name}_net *net)", "{", *declarations, "    int y, x, ky, kx, c;", "",
        f"    for (y = 0; y < {pool.out.grid[1]}; ++y) {{", f"        for (x = 0; x < {pool.out.grid[2]}; ++x) {{",
        f"            const int pixel = y * {pool.out.grid[2]} + x;", *start,
        f"            for (ky = 0; ky < {high}; ++ky) {{",
        f"                const int row = {source_index('y', sy, py, 'ky', dy)};",
        f"                if (row < 0 || row >= {height}) continue;",
        f"                for (kx = 0; kx < {wide}; ++kx) {{",
        f"                    const int column = {source_index('x', sx, px, 'kx', dx)};",
        f"                    const int at = row * {width} + column;",
        f"                    if (column < 0 || column >= {width}) continue;", *inner,
        "                }", "            }", *after, "        }", "    }", "}", "",
    ]  # fmt: skip
    return "\n".join(lines)


def _or(pool: Pool) -> tuple[list[str], list[str], list[str]]:
    count, cast = words(pool.out), f"({word_type(pool.out)})"
    start = [f"            for (c = 0; c < {count}; ++c) out[pixel * {count} + c] = 0;"]
    inner = [
        f"                    for (c = 0; c < {count}; ++c)",
        f"                        out[pixel * {count} + c] = {cast}(out[pixel * {count} + c] | in[at * {count} + c]);",
    ]
    return start, inner, []


def _numbers(w: Writer, pool: Pool, total: str) -> tuple[list[str], list[str]]:
    channels, source = pool.out.grid[0], pool.source
    if pool.takes == "max":
        least = "0" if source.kind == "counts" else "-3.402823466e38f" if total in ("float", FIRST) else "INT32_MIN"
        test = f"if (({total})in[at * {channels} + c] > sum[c]) sum[c] = ({total})in[at * {channels} + c];"
        return [f"            for (c = 0; c < {channels}; ++c) sum[c] = {least};"], [
            f"                    for (c = 0; c < {channels}; ++c) {test}"
        ]
    start = [f"            for (c = 0; c < {channels}; ++c) sum[c] = 0;"]
    if source.kind != "bits":
        return start, [
            f"                    for (c = 0; c < {channels}; ++c) sum[c] += ({total})in[at * {channels} + c];"
        ]
    w.use("lowest_bit")
    bits, count = word_bits(channels), words(source)
    inner = [
        f"                    for (c = 0; c < {count}; ++c) {{",
        f"                        uint32_t left = in[at * {count} + c];",
        f"                        for (; left != 0; left &= left - 1) ++sum[c * {bits} + lowest_bit(left)];",
        "                    }",
    ]
    return start, inner


def combine_function(w: Writer, op: Combine, function: str) -> str:
    """Writes a copy, product or matrix product, element by element."""
    integer, out = w.program.integer, op.out.buffer
    c_type = element_type(out, integer)
    total = "int32_t" if out.kind in ("bits", "counts") else "double" if c_type == FIRST else c_type
    declarations = [f"    {c_type} *out = {w.memory.address(out)};"]
    for i, operand in enumerate(op.operands):
        declarations.append(
            f"    const {element_type(operand.buffer, integer)} *in{i} = {w.memory.address(operand.buffer)};"
        )
    axes = len(op.sizes)
    letters = [f"i{axis}" for axis in range(axes)]
    lines = _cleared(w, out)
    indent = "    "
    for axis in range(axes - op.reduced):
        lines.append(f"{indent}for (i{axis} = 0; i{axis} < {op.sizes[axis]}; ++i{axis}) {{")
        indent += "    "
    lines.append(f"{indent}const int place = {_walk(op.out, letters)};")
    lines.append(f"{indent}{total} value = 0;")
    for axis in range(axes - op.reduced, axes):
        lines.append(f"{indent}for (i{axis} = 0; i{axis} < {op.sizes[axis]}; ++i{axis})")
        indent += "    "
    product = " * ".join(f"({total}){_read(operand, f'in{i}', letters)}" for i, operand in enumerate(op.operands))
    lines.append(f"{indent}value += {'1 - ' if op.complement else ''}{product};")
    indent = indent[: len(indent) - 4 * op.reduced]
    if op.factor != 1:
        lines.append(f"{indent}value *= {number(op.factor, 'float' if total == 'float' else 'double')};")
    lines += [f"{indent}{line}" for line in _write(out, c_type, total)]
    for _ in range(axes - op.reduced):
        indent = indent[4:]
        lines.append(f"{indent}}}")
    inputs = ", ".join(operand.buffer.name for operand in op.operands)
    what = (
        "sum of products" if op.reduced else "product" if len(op.operands) > 1 else "1 - x" if op.complement else "copy"
    )
    frame = ", const float *frame" if reads_frame(op) else ""
    head = [
        f"/* {comment(f'{op.name} {shape_text(out)}: {what} of {inputs}')} */",
        f"LAYER {function}({w.name}_net *net{frame})",
        "{",
    ]
    needed = [f"    int {', '.join(letters)};"] if letters else []
    clearing = ["    int i;"] if any("(i = 0" in line for line in lines) else []
    return "\n".join([*head, *declarations, *needed, *clearing, "", *lines, "}", ""])


def _cleared(w: Writer, out: Buffer) -> list[str]:
    """Bits are set one by one, so the buffer is cleared before the first write."""
    if out.kind != "bits" or not w.first_write(out):
        return []
    return [f"    for (i = 0; i < {out.grid[1] * out.grid[2] * words(out)}; ++i) out[i] = 0;"]


def _walk(walk: Strided, letters: list[str]) -> str:
    parts = [letter if s == 1 else f"{letter} * {s}" for s, letter in zip(walk.strides, letters) if s]
    return " + ".join([*parts, *([str(walk.base)] if walk.base or not parts else [])])


def _bit(buffer: Buffer) -> tuple[str, str]:
    """Returns the word and the bit of element ``@``; unsigned, so that a division by a power of 2 is a shift."""
    channels, bits, count = buffer.grid[0], word_bits(buffer.grid[0]), words(buffer)
    if channels == 1:
        return "@", "0"
    at = "(unsigned)(@)"
    if count == 1:
        return f"{at} / {channels}u", f"{at} % {channels}u"
    return f"{at} / {channels}u * {count}u + {at} % {channels}u / {bits}u", f"{at} % {channels}u % {bits}u"


def _read(operand: Strided, name: str, letters: list[str]) -> str:
    index = _walk(operand, letters)
    if operand.buffer.kind != "bits":
        return f"{name}[{index}]"
    word, bit = (text.replace("@", index) for text in _bit(operand.buffer))
    return (
        f"(((uint32_t){name}[{word}] >> {bit}) & 1u)" if bit == "0" else f"(((uint32_t){name}[{word}] >> ({bit})) & 1u)"
    )


def _write(out: Buffer, c_type: str, total: str) -> list[str]:
    if out.kind != "bits":
        return [f"out[place] = {'' if c_type == total else f'({c_type})'}value;"]
    word, bit = (text.replace("(@)", "place").replace("@", "place") for text in _bit(out))
    return [f"if (value != 0) out[{word}] = ({c_type})(out[{word}] | ({c_type})(1u << ({bit})));"]
