"""Reads the project's Markdown pages: code blocks with the output they show, links, anchors."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
FENCE = re.compile(r"^(?P<fence>`{3,})(?P<language>\S*)[^\n]*\n(?P<code>.*?)^(?P=fence)\s*$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A fenced block. ``output`` is the text of an ``output`` block right behind it, None if there is none."""

    language: str
    code: str
    line: int
    output: str | None = None


def pages() -> list[Path]:
    """Returns all Markdown pages that people read: the site's and those at the top of the repository."""
    return sorted(path for path in DOCS.rglob("*.md") if "_build" not in path.parts) + sorted(ROOT.glob("*.md"))


def name(path: Path) -> str:
    """Returns a page's path below the repository."""
    return path.relative_to(ROOT).as_posix()


def blocks(path: Path) -> list[Block]:
    """Returns the fenced blocks of a page in order, each with the output that the page shows for it."""
    text, actual = path.read_text(), []
    matches = list(FENCE.finditer(text))
    for match, behind in zip(matches, [*matches[1:], None]):
        shown = behind is not None and behind["language"] == "output" and not text[match.end() : behind.start()].strip()
        line = text.count("\n", 0, match.start("code")) + 1
        actual.append(Block(match["language"], match["code"], line, behind["code"] if behind and shown else None))
    return actual


def prose(path: Path) -> str:
    """Returns a page without its code blocks and comments; line numbers stay."""
    text = FENCE.sub(lambda match: "\n" * match[0].count("\n"), path.read_text())
    return re.sub(r"<!--.*?-->", lambda match: "\n" * match[0].count("\n"), text, flags=re.DOTALL)


def anchors(path: Path) -> set[str]:
    """Returns the anchors of a page's headings, as GitHub and the site name them."""
    slugs: set[str] = set()
    for heading in re.findall(r"^#{1,6} +(.+?) *$", prose(path), re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", plain.lower()).strip().replace(" ", "-")
        number = 0
        while (unique := slug if number == 0 else f"{slug}-{number}") in slugs:
            number += 1
        slugs.add(unique)
    return slugs
