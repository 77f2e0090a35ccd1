"""Draws sentences at random from pages, docstrings, comments and messages, to be read as a newcomer would.

    python tools/sentences.py [--seed 0] [--count 200]

CONTRIBUTING.md sets the goal: at most 1 in 40 has to be read twice.
"""

from __future__ import annotations

import argparse
import ast
import io
import random
import re
import sys
import tokenize
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.docs.markdown import pages, prose  # noqa: E402

END = re.compile(r"(?<=[.!?])\s+(?=[A-Z`\"(])")
LIST_MARK = re.compile(r"^\s*(?:[-*>#]+|\d+\.)\s+")
# A docstring begins a new block at an empty line, a list entry, or a line about an argument (``name: meaning``).
BREAK = re.compile(r"\n\s*\n|\n\s*(?=(?:[-*]|\d+\.) |[\w`]+(?:, [\w`]+)*: )")


def of_page(path: Path) -> list[str]:
    """Returns the paragraphs and list entries of a page, without tables and code."""
    blocks: list[str] = [""]
    for line in prose(path).splitlines():
        if not line.strip() or line.lstrip().startswith(("|", "<", ":", "#", "!")):
            blocks.append("")
        elif LIST_MARK.match(line):
            blocks.append(LIST_MARK.sub("", line))
        else:
            blocks[-1] += " " + line.strip()
    return blocks


def of_code(path: Path) -> list[str]:
    """Returns the paragraphs of docstrings, the comments and the messages of a Python file."""
    text = path.read_text()
    strings = [node.value for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Constant)]
    blocks = [part for s in strings if isinstance(s, str) for part in BREAK.split(s)]
    last = -1
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT and not re.match(r"# ?(fmt|type|noqa|mypy|%)", token.string):
            words = token.string.lstrip("# ")
            own_line = not token.line[: token.start[1]].strip()
            if own_line and token.start[0] == last + 1:
                blocks[-1] += " " + words
            else:
                blocks.append(words)
            last = token.start[0] if own_line else -1
    return blocks


def sentences() -> list[tuple[str, str]]:
    """Returns (file, sentence) of every sentence with at least four words."""
    pairs = []
    code = [*(ROOT / "src").rglob("*.py"), *(ROOT / "docs" / "tutorials").glob("*.py")]
    for path in [*pages(), *sorted(code)]:
        blocks = of_page(path) if path.suffix == ".md" else of_code(path)
        for block in blocks:
            for sentence in END.split(" ".join(block.split())):
                if len(re.findall(r"[A-Za-z]{2,}", sentence)) >= 4:
                    pairs.append((str(path.relative_to(ROOT)), sentence))
    return pairs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=200)
    args = parser.parse_args()
    everything = sentences()
    print(f"{args.count} of {len(everything)} sentences, seed {args.seed}")
    for number, (path, sentence) in enumerate(random.Random(args.seed).sample(everything, args.count), 1):
        print(f"{number:3} {path}: {sentence}")


if __name__ == "__main__":
    main()
