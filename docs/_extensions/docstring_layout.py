"""Lays out docstrings for the site: parameter lines become a list, indented formulas become literal blocks.

Docstrings of this project are plain text: ``name: meaning`` lines for parameters, formulas indented by four spaces.
reStructuredText would join those lines to one paragraph.
"""

from __future__ import annotations

import re
from typing import Any

PARAMETER = re.compile(r"(?P<names>[a-zA-Z_][\w.]*(?:, [a-zA-Z_][\w.]*)*): (?P<meaning>\S.*)")


def escaped(text: str) -> str:
    """Escapes the characters outside of backticks that reStructuredText would take for markup."""
    pieces = re.split(r"(`+[^`]*`+)", text)
    return "".join(p if p.startswith("`") else re.sub(r"([*|]|_(?!\w))", r"\\\1", p) for p in pieces)


def lay_out(lines: list[str]) -> list[str]:
    """Returns the docstring's lines as reStructuredText."""
    result: list[str] = []
    literal = listed = False
    for line in lines:
        text = line.strip()
        match = PARAMETER.fullmatch(line)
        if literal and text and not line.startswith("    "):
            literal = False
            result.append("")
        if match:
            if not listed:
                result.append("")
            listed = True
            result.append(f"- **{escaped(match['names'])}**: {escaped(match['meaning'])}")
        elif listed and line.startswith("    "):
            result.append(f"  {escaped(text)}")
        elif line.startswith("    ") and not literal and (not result or not result[-1].strip()):
            literal = True
            result += ["::", "", line]
        else:
            if listed and text:
                result.append("")
            listed = listed and not text
            result.append(line if literal else escaped(line))
    return result


def setup(app: Any) -> dict[str, bool]:
    def process(app: Any, what: str, name: str, obj: object, options: object, lines: list[str]) -> None:
        lines[:] = lay_out(lines)

    app.connect("autodoc-process-docstring", process)
    return {"parallel_read_safe": True}
