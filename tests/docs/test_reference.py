"""Every public name is on a reference page, with a docstring and an example; so are commands and data sets."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from pathlib import Path

import pytest

from tests.docs.markdown import DOCS, ROOT, blocks, pages
from tests.docs.markdown import name as page_name

MODULES = ["", "analysis", "data", "deploy", "detection", "interop", "models", "nn", "plot", "train", "zoo"]
DIRECTIVE = re.compile(r"^\.\. (?:auto\w+|py:data):: steadyspike\.([\w.]+)$", re.MULTILINE)


def module(part: str):
    return importlib.import_module(f"steadyspike.{part}" if part else "steadyspike")


def described() -> dict[str, object]:
    """Returns every object that a directive of a reference page names."""
    actual = {}
    for page in (DOCS / "reference").glob("*.md"):
        for path in DIRECTIVE.findall(page.read_text()):
            *parts, last = path.split(".")
            actual[path] = getattr(importlib.import_module(".".join(["steadyspike", *parts])), last)
    return actual


@pytest.mark.parametrize("part", MODULES)
def test_every_public_name_is_described_and_used(part: str) -> None:
    objects = described()
    page = DOCS / "reference" / f"{part or 'steadyspike'}.md"
    code = "\n".join(block.code for block in blocks(page) if block.language == "python")
    top = "\n".join(block.code for block in blocks(DOCS / "reference" / "steadyspike.md"))
    for name in module(part).__all__:
        value = getattr(module(part), name)
        if name == "__version__" or inspect.ismodule(value):
            assert f"ss.{name}" in page.read_text(), name
            continue
        reference = any(value is other for other in objects.values())
        assert reference, f"{name} has no directive in docs/reference: add it to {page.name}, with an example"
        assert re.search(rf"\b{name}\b", code + top), f"no example of {page.name} uses {name}"


@pytest.mark.parametrize("part", MODULES)
def test_every_public_name_has_a_docstring(part: str) -> None:
    for name in module(part).__all__:
        value = getattr(module(part), name)
        if inspect.isclass(value) or inspect.isroutine(value):
            text = inspect.getdoc(value)
            assert text and len(text.split()) >= 3, f"steadyspike.{part}.{name} has no docstring"
            if inspect.isclass(value):
                assert value.__doc__ != object.__doc__, f"{name} only inherits a docstring"


@pytest.mark.parametrize("part", MODULES)
def test_completion_shows_public_names_only(part: str) -> None:
    parts = {name for name in MODULES if name} if not part else set()  # `dir(steadyspike)` lists its parts, too
    assert set(dir(module(part))) == set(module(part).__all__) | parts


@pytest.mark.parametrize("part", MODULES)
def test_a_reference_page_has_the_name_of_its_module(part: str) -> None:
    page = DOCS / "reference" / f"{part or 'steadyspike'}.md"
    assert page.read_text().splitlines()[0] == f"# `{module(part).__name__}`"


def lessons() -> list[Path]:
    """Returns the pages for users who do not change the library: none may depend on what can change at any time."""
    chosen = [page for page in pages() if page.name.startswith(("README", "start", "from-", "index", "deploy", "zoo"))]
    own = sorted((ROOT / "examples" / "own").glob("*.py"))
    return [*chosen, *sorted((DOCS / "reference").glob("*.md")), *sorted((DOCS / "tutorials").glob("*.py")), *own]


@pytest.mark.parametrize("page", lessons(), ids=page_name)
def test_lessons_use_public_names_only(page: Path) -> None:
    codes = [page.read_text()]
    if page.suffix == ".md":
        codes = [block.code for block in blocks(page) if block.language == "python"]
    public = {module(part).__name__: set(dir(module(part))) for part in MODULES}
    for node in (node for code in codes for node in ast.walk(ast.parse(code))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "steadyspike":
            assert node.module in public, f"{page_name(page)} imports from {node.module}, which is not public"
            assert {alias.name for alias in node.names} <= public[node.module]
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) in ("ss", *(f"ss.{part}" for part in MODULES)):
            owner = ast.unparse(node.value).replace("ss", "steadyspike", 1)
            assert node.attr in public[owner], f"{page_name(page)}: {owner}.{node.attr} is not on a reference page"


def test_parts_are_on_the_index() -> None:
    index = (DOCS / "reference" / "index.md").read_text()
    assert [part for part in MODULES if f"`steadyspike.{part}`" not in index and part] == []


def test_generated_pages() -> None:
    import sys

    sys.path.insert(0, str(DOCS / "_extensions"))
    try:
        from command_reference import commands, data_sets
        from docstring_layout import lay_out
    finally:
        sys.path.pop(0)
    import steadyspike.data as data

    text = commands()
    assert "## `train`" in text and "`--resume`" in text and "## `data " in text
    assert [name for name in data.names() if f"`{name}`" not in data_sets()] == []
    laid_out = lay_out(["Does it.", "", "    M = U + I", "", "tau: a number,", "    above 1.", "Then *this."])
    formula, parameter = ["::", "", "    M = U + I"], ["- **tau**: a number,", "  above 1."]
    assert [line for line in laid_out if line] == ["Does it.", *(f for f in formula if f), *parameter, "Then \\*this."]
