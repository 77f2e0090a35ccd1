"""`export_c`: writes a folded network as one C99 file with its header and a README."""

from __future__ import annotations

import os
import re
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from steadyspike.deploy.network import FoldedNetwork
from steadyspike.deploy.standalone.c_layer import layer_function
from steadyspike.deploy.standalone.c_names import comment, lines_of, string
from steadyspike.deploy.standalone.c_pool import combine_function, pool_function
from steadyspike.deploy.standalone.c_types import element_type
from steadyspike.deploy.standalone.c_writer import Writer, reads_frame
from steadyspike.deploy.standalone.lower import lower
from steadyspike.deploy.standalone.program import Layer, Operation, Pool, Program

INPUT_LIMIT = 65536.0
SHARED = "values of one step; values that are not needed at the same time share memory"


class CExport(NamedTuple):
    """The files, and their needs in bytes: RAM of the network's struct, stack (estimated) and flash for tables."""

    source: Path
    header: Path
    readme: Path
    ram: int
    stack: int
    flash: int


def export_c(
    network: FoldedNetwork,
    folder: str | os.PathLike[str],
    name: str = "network",
    *,
    integer: bool = True,
    main: bool = False,
    facts: dict[str, Any] | None = None,
) -> CExport:
    """Writes ``name.c``, ``name.h`` and README.md to ``folder``.

    integer: 8-bit weights and integer neurons, with exactly the spikes of `IntegerNetwork`; False: float32
    main: add a program for tests, which reads inputs and writes spikes and scores
    facts: class names and preparation of inputs, as `steadyspike fold` stores them
    """
    texts = c_texts(lower(network, name, integer=integer, facts=facts), main)
    target = Path(folder)
    target.mkdir(exist_ok=True)
    stem = texts.writer.name
    paths = target / f"{stem}.c", target / f"{stem}.h", target / "README.md"
    for path, text in zip(paths, (texts.source, texts.header, texts.readme)):
        path.write_text(text, encoding="utf-8")
    return CExport(*paths, texts.ram, texts.writer.stack, texts.writer.flash)


class CTexts(NamedTuple):
    """Returns the contents of the three files."""

    source: str
    header: str
    readme: str
    writer: Writer
    ram: int


def c_texts(program: Program, main: bool = False) -> CTexts:
    """Returns the C code of a program."""
    w = Writer(program)
    layers = [_function(w, op, name) for op, name in zip(w.operations, w.functions)]
    w.use("exponential")
    ram = w.memory.ram() + 8 * program.output.size + 8
    parts = {**_names(w, ram), **_calls(w), **_main_parts(w, main)}
    parts |= {"layers": "\n".join(layers), "tables": "", "starts": _starts(w), "watch": "", "main": ""}
    parts |= {"tables": "\n".join(w.tables), "helpers": w.helper_texts()}
    parts["watch"] = _filled("watch_main.c" if main else "watch.c", parts)
    parts["main"] = _filled("main.c", parts) if main else ""
    return CTexts(_filled("source.c", parts), _filled("header.h", parts), _filled("README.md", parts), w, ram)


def _filled(part: str, parts: dict[str, str]) -> str:
    text = (files("steadyspike") / "deploy" / "standalone" / "c_parts" / part).read_text(encoding="utf-8")
    return re.sub("@([A-Za-z_]+)@", lambda match: parts[match[1]], text)


def _function(w: Writer, op: Operation, name: str) -> str:
    if isinstance(op, Layer):
        return layer_function(w, op, name)
    return pool_function(w, op, name) if isinstance(op, Pool) else combine_function(w, op, name)


def _names(w: Writer, ram: int) -> dict[str, str]:
    """Returns texts about the network."""
    program = w.program
    model, data = (str(program.facts.get(key) or "") for key in ("model", "data"))
    kind = "8-bit integers" if program.integer else "float32"
    about = f"A spiking network in {kind}{f': {model}' if model else ''}{f', trained on {data}' if data else ''}."
    shape = comment(f"{list(program.shape)}")
    classes = class_names(program)
    frames = f"[steps][{']['.join(map(str, program.shape))}]" if program.takes_frames else ""
    limit = program.limit
    first = (
        "/* Arithmetic before the first neurons; float is faster if double is emulated, and rounds differently. */\n"
    )
    first += f"#ifndef {w.name.upper()}_FIRST\n#define {w.name.upper()}_FIRST double\n#endif\n"
    first += f"typedef {w.name.upper()}_FIRST {w.name}_first;\n\n"
    members = [f"    {_member_type(w, t)} {t}_values[{n}];" for t, n in w.memory.arrays().items()]
    potentials = [
        f"    {t} {w.names[layer]}_u[{n}]; /* potentials of {comment(layer)} */"
        for layer, (t, n) in w.memory.potentials.items()
    ]
    return {
        "name": w.name, "NAME": w.name.upper(), "title": comment(program.name),
        "about": comment(about), "version": version("steadyspike"),
        "inputs": str(int(np.prod(program.shape))), "shape": shape, "classes": str(program.output.size),
        "timesteps": str(program.timesteps), "limit": str(INPUT_LIMIT), "ram": str(ram),
        "flash": str(w.flash), "stack": str(w.stack),
        "steps_text": f"the network has constants for {limit} steps" if limit else "not returned by this network",
        "first": first if program.integer else "",
        "first_type": f"typedef {w.name}_first first_t;\n\n" if program.integer else "",
        "members": "\n".join([*potentials, f"    /* {SHARED} */", *members, ""]),
        "class_names": "\n".join(lines_of(string(name) for name in classes)),
        "classes_text": comment(", ".join(classes[:20])) + (", ..." if len(classes) > 20 else ""),
        "input_text": f"{'frames' if frames else 'an image'} of {shape} float32{f', {frames}' if frames else ''}",
        "frame_text": f"@NAME@_INPUTS values as {shape}".replace("@NAME@", w.name.upper())
        + (";" if program.takes_frames else "; null: the image of the step before;"),
        "run_text": f"{frames}." if program.takes_frames else f"one image, {shape}, shown for all steps.",
        "compile_text": _compile_text(w), "preparation": _preparation(program),
    }  # fmt: skip


def class_names(program: Program) -> list[str]:
    """Returns the names of the classes; their numbers if there are no names."""
    names = [str(name) for name in program.facts.get("classes") or []]
    return names if len(names) == program.output.size else [str(i) for i in range(program.output.size)]


def _member_type(w: Writer, c_type: str) -> str:
    return f"{w.name}_first" if c_type == "first_t" else c_type


def _compile_text(w: Writer) -> str:
    if not w.program.integer:
        return "The network computes in float32; sums are in another order than PyTorch's, so the last bits may differ."
    return (
        "All neurons compute in integers and emit exactly the spikes of the integer network in Python. Layers before "
        f"the first neurons read real numbers and compute in double precision; `-D{w.name.upper()}_FIRST=float` makes "
        "them faster on small processors and may move a spike in a million."
    )


def _preparation(program: Program) -> str:
    mean, std = program.facts.get("mean"), program.facts.get("std")
    if program.takes_frames:
        return "\nA frame counts the events of each pixel and polarity, as the training data was prepared.\n"
    if mean and std:
        return f"\nPrepare an image as (value / 255 - mean) / std by channel, with mean {mean} and std {std}.\n"
    return "\nPrepare an image as value / 255.\n" if program.facts else ""


def _calls(w: Writer) -> dict[str, str]:
    """Returns the body of ``step``."""
    program, upper = w.program, w.name.upper()

    def calls(operations: list[Operation], start: int, indent: str) -> str:
        lines = []
        for i, op in enumerate(operations, start):
            frame = ", frame" if reads_frame(op) else ""
            lines.append(f"{indent}{w.functions[i]}(net{frame});\n")
        return "".join(lines)

    still = calls(program.still, 0, "        ")
    check = f"    if (net->step >= {program.limit}) return {upper}_TOO_MANY_STEPS;\n" if program.limit else ""
    if program.takes_frames:
        check += f"    if (frame == NULL) return {upper}_BAD_ARGUMENT;\n"
        image = ""
    else:
        check += f"    if (frame == NULL && !net->has_image) return {upper}_BAD_ARGUMENT;\n"
        image = (
            f"    if (frame != NULL) {{ /* what an image needs once */\n{still}        net->has_image = 1;\n    }}\n"
        )
    return {
        "step_check": check, "still": image, "each_step": calls(program.each_step, len(program.still), "    "),
        "output": w.memory.address(program.output), "output_type": element_type(program.output, program.integer),
        "output_scale": repr(float(program.output_scale)),
        "run_frame": f"input + (size_t)t * {upper}_INPUTS" if program.takes_frames else "t == 0 ? input : NULL",
    }  # fmt: skip


def _main_parts(w: Writer, main: bool) -> dict[str, str]:
    upper, frames = w.name.upper(), w.program.takes_frames
    text = ""
    if main:
        text = (
            f"\n`{w.name}.c` also holds a program for tests: `cc -std=c99 -O2 {w.name}.c -o {w.name}`, then "
            f"`./{w.name} {w.program.timesteps} < inputs.f32 > spikes-and-scores.bin`.\n"
        )
    return {
        "main_inputs": f"{upper}_INPUTS * {64 if frames else 1}",
        "main_frames": "steps" if frames else "1",
        "main_frame": f"input + (size_t)t * {upper}_INPUTS" if frames else "t == 0 ? input : NULL",
        "main_text": text,
    }


def _starts(w: Writer) -> str:
    """Returns the lines of ``init`` that set the potentials."""
    lines = []
    for layer in w.program.layers:
        n = layer.neurons
        assert n is not None
        c_type, size = w.memory.potentials[n.potential]
        channels = layer.out.grid[0]
        index = "i" if n.start.shape[0] > 1 else "0" if n.start.size == 1 else f"i % {channels}"
        start = w.constant("start", n.potential, n.start, c_type, index)
        lines.append(f"    for (i = 0; i < {size}; ++i) net->{w.names[n.potential]}_u[i] = {start};\n")
    return "".join(lines)
