"""Finds the patterns that CONTRIBUTING.md rules out, in pages, docstrings, comments and messages."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

from tests.docs.markdown import ROOT, pages, prose

THINGS = (
    "file|page|table|code|kernel|recipe|run|test|message|error|layer|network|report|result|note|header|command|graph|"
    "checkpoint|folder|column|key|line|text|docstring|comment|library|package|function|method|class|scan|set|list|paper"
)
ACTORS = "fold|model|trainer|reader|loader|optimizer|compiler|tracer|rule|scan|checksum|form"
BANNED = {
    "people where nobody acts: name the process, function or user": r"\b(some|no|every|any)body\b|\bwhoever\b",
    "things do not tell, say, believe or know": (
        rf"\b({THINGS}|{ACTORS})s? (says?|tells?|told|believes?|believed|knows?|knew|does not know|do not know)\b"
        r"|\b(is|are|was|were|be|been) (told|believed)\b|\bno \w+ is believed\b"
    ),
    '"is not a", not "is no"': (
        r"(?<!there )(?<!There )\b(is|are|was|were) no (?!longer\b|more\b|less\b|other\b|one\b)[a-z]"
    ),
    '"if" or "when", not "where"': (
        r"(?:^|[.:;] )Where (?!does\b|is\b|it\b|to\b|the (library|time)\b|time\b|runs\b|and\b)[a-z`]"
        r"|\b(None|True|False|[A-Za-z]*[Ee]rror|refused|raises|skipped|nothing|empty|also|even|only|except) where\b"
        r"|\b(NaN|dash|-1|0) where (it|the|a|both|all|there)\b(?! reference)"
        r"|\bwhere (there|nothing|none|that is (faster|possible|not allowed)|it can(not)?|they can(not)?|one is|no)\b"
    ),
    'words of place for an order: "in sequence", "instead of", "restore", "processed"': (
        r"\bone behind the other\b|\bin the place of\b|\bputs? (it |them )?back\b|\blaid out\b|\bgone through\b"
    ),
    'old forms: "next to" or "with", "again", "separate", "unchanged"': (
        r"\bbeside (it|them|the|each|every|its|ours|other)\b|\banew\b|\bprocess of its own\b|\bis of another\b"
        r"|\brefused by name\b|\b(kept|left|stays?|used|taken|returned) as (it is|they are)\b"
    ),
}
NAMES = {"found", "place", "wanted", "known", "said"}
COMMENT_MARKS = {".cpp": "//", ".h": "//", ".toml": "#"}
SOURCES = ("src", "tests", "benchmarks", "examples", "tools", "torture")


def sources() -> list[Path]:
    """Returns the project's Python files."""
    return sorted(path for folder in SOURCES for path in (ROOT / folder).rglob("*.py"))


def other_sources() -> list[Path]:
    """Returns the files of the CPU kernels and the recipes, whose comments and descriptions are read too."""
    kernels = [path for path in (ROOT / "csrc").rglob("*") if path.suffix in COMMENT_MARKS]
    return sorted([*kernels, *(ROOT / "src" / "steadyspike" / "recipes").rglob("*.toml")])


def sentences(path: Path) -> Iterator[tuple[int, str]]:
    """Yields (line, text) of all that people read in a file: prose, comments, docstrings, messages, descriptions."""
    if path.suffix in COMMENT_MARKS:
        for number, line in enumerate(path.read_text().splitlines(), 1):
            _, mark, comment = line.partition(COMMENT_MARKS[path.suffix])
            described = re.match(r'(?:about|note|shown|text) = "(.*)"', line)
            yield number, re.sub(r"`[^`]*`", "`code`", comment if mark else described[1] if described else "")
        return
    if path.suffix == ".md":
        for number, line in enumerate(prose(path).splitlines(), 1):
            yield number, re.sub(r"`[^`]*`", "`code`", line)
        return
    for token in tokenize.generate_tokens(io.StringIO(path.read_text()).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string.lstrip("# ")
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            for number, line in enumerate(node.value.splitlines()):
                yield node.lineno + number, re.sub(r"`[^`]*`", "`code`", line.strip())


def broken_rules(text: str) -> list[str]:
    """Returns the rules that a sentence breaks."""
    return [rule for rule, pattern in BANNED.items() if re.search(pattern, text)]


def findings(paths: list[Path]) -> list[str]:
    """Returns one line for each banned pattern: file, line, rule, text."""
    lines = []
    for path in paths:
        for number, text in sentences(path):
            lines += [f"{path.relative_to(ROOT)}:{number}: {rule}: {text.strip()[:100]}" for rule in broken_rules(text)]
    return lines


def vague_names(paths: list[Path]) -> list[str]:
    """Returns one line for each variable, argument, attribute or function with a name that holds no meaning."""
    lines = []
    for path in paths:
        text = path.read_text()
        if not any(name in text for name in NAMES):
            continue  # parsing is what takes the time
        for node in ast.walk(ast.parse(text)):
            name = _named(node)
            if name is not None and name.strip("_") in NAMES:
                lines.append(f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}: {name}")
    return lines


def _named(node: ast.AST) -> str | None:
    """The name that a node gives to something; None if it gives none."""
    if isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Store):
        return node.id if isinstance(node, ast.Name) else node.attr
    if isinstance(node, ast.arg):
        return node.arg
    return node.name if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)) else None


def final_periods(paths: list[Path]) -> list[str]:
    """Returns one line for each error of one sentence that ends with a period."""
    lines = []
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and node.exc.args:
                message = node.exc.args[0]
                parts = message.values if isinstance(message, ast.JoinedStr) else [message]
                text = "".join(str(p.value) if isinstance(p, ast.Constant) else "{}" for p in parts)
                if text.endswith(".") and not text.endswith(".."):
                    lines.append(f"{path.relative_to(ROOT)}:{node.lineno}: {text[-70:]}")
    return lines


if __name__ == "__main__":
    for line in findings([*pages(), *sources(), *other_sources()]) + final_periods(sources()) + vague_names(sources()):
        print(line)
