"""Names and texts of a model in C: identifiers, comments and strings that a name cannot end, and numbers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import numpy as np

from steadyspike.deploy.standalone.program import Array

WIDTH = 110


def identifier(name: str) -> str:
    """Returns letters, digits and underscores of a name; never empty, and never starting with a digit or underscore."""
    text = re.sub(r"[^A-Za-z0-9]+", "_", name).strip("_")
    return text if text and not text[0].isdigit() else f"n{text}"


def unique(names: Iterable[str]) -> list[str]:
    """Returns an identifier for every name, all different; C compilers may compare only the first 63 characters."""
    taken: set[str] = set()
    chosen = []
    for name in names:
        stem = identifier(name)[:40]
        text, i = stem, 1
        while text.lower() in taken:
            i += 1
            text = f"{stem}_{i}"
        taken.add(text.lower())
        chosen.append(text)
    return chosen


def comment(text: str) -> str:
    """Returns a text that cannot end a comment, continue a line or form a trigraph."""
    return re.sub(r"[^A-Za-z0-9_.,:;()\[\]=+ -]", "_", text)


def string(text: str) -> str:
    """Returns a C string literal of a text in UTF-8; characters other than plain ASCII are written in octal."""

    def character(byte: int) -> str:
        return chr(byte) if 32 <= byte < 127 and chr(byte) not in '"\\?' else f"\\{byte:03o}"

    return f'"{"".join(character(byte) for byte in text.encode(errors="replace"))}"'


def number(value: float, c_type: str) -> str:
    """Returns a constant of a C type."""
    if c_type in ("float", "double"):
        text = str(np.float32(value)) if c_type == "float" else repr(float(value))
        text = text if any(mark in text for mark in ".en") else f"{text}.0"
        return f"{text}f" if c_type == "float" else text
    return str(int(value))


def lines_of(values: Iterable[str], indent: str = "    ") -> Iterator[str]:
    """Returns numbers in lines of a readable width."""
    line = indent
    for value in values:
        if len(line) + len(value) > WIDTH:
            yield line.rstrip()
            line = indent
        line += f"{value}, "
    if line.strip():
        yield line.rstrip().rstrip(",")


def constant_array(name: str, values: Array, c_type: str, about: str) -> str:
    """A static table."""
    flat = values.reshape(-1)
    body = "\n".join(lines_of(number(v, c_type) for v in flat.tolist()))
    return f"/* {comment(about)} */\nstatic const {c_type} {name}[{flat.size}] = {{\n{body}\n}};\n"
