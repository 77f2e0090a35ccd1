"""Links of the pages lead somewhere: files exist, headings exist, commands and options exist."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import typer

from tests.docs.markdown import ROOT, anchors, blocks, name, pages, prose

LINK = re.compile(r"\[[^\]]*\]\(([^()\s]+)\)")
GENERATED = {"docs/reference/commands.md"}  # its headings are written when the site is built


@pytest.mark.parametrize("page", pages(), ids=name)
def test_links_lead_to_files_and_headings(page: Path) -> None:
    for link in LINK.findall(prose(page)):
        if re.match(r"[a-z]+:", link):
            continue
        file, _, anchor = link.partition("#")
        target = (page.parent / file).resolve() if file else page
        assert target.exists(), f"{name(page)} links to {link}, which does not exist"
        if anchor and target.suffix == ".md" and name(target) not in GENERATED:
            assert anchor in anchors(target), f"{name(page)} links to {link}; {name(target)} has no such heading"


def commands() -> dict[str, set[str]]:
    """Returns the options of every command by its full name, such as "data check"."""
    from steadyspike.cli import app

    def below(group, prefix):
        for command_name, command in group.commands.items():
            full = f"{prefix} {command_name}".strip()
            if getattr(command, "commands", None):
                yield from below(command, full)
            else:
                yield full, {option for parameter in command.params for option in parameter.opts} | {"--help"}

    return dict(below(typer.main.get_command(app), ""))


def command_lines(page: Path) -> list[str]:
    """Returns the lines of a page's shell blocks that call steadyspike, with continued lines joined."""
    text = "\n".join(block.code for block in blocks(page) if block.language == "bash").replace("\\\n", " ")
    return [line for line in text.splitlines() if re.match(r"(\w+=\S+ )*steadyspike ", line)]


def test_commands_and_options_of_the_pages_exist() -> None:
    options_of, checked = commands(), 0
    for page in pages():
        for line in command_lines(page):
            words = shlex.split(line, comments=True)
            words = words[words.index("steadyspike") + 1 :]
            if not words or words[0] == "--version":
                continue
            command = next((c for c in (" ".join(words[:2]), words[0]) if c in options_of), None)
            assert command, f"{name(page)}: there is no command in {line!r}"
            for word in words:
                if word.startswith("-"):
                    assert word.split("=")[0] in options_of[command], f"{name(page)}: {command} has no {word} ({line})"
            checked += 1
    assert checked > 40


def test_make_targets_of_the_pages_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for page in pages():
        text = page.read_text()
        named = re.findall(r"`make ([a-z][a-z-]*)", text) + re.findall(r"^make ([a-z][a-z-]*)", text, re.MULTILINE)
        assert set(named) <= targets, f"{name(page)} names make targets that do not exist: {set(named) - targets}"


@pytest.mark.parametrize("page", pages(), ids=name)
def test_no_wrapped_line_begins_with_a_mark_of_markdown(page: Path) -> None:
    """A ">" that wrapping put at the start of a line makes the rest of the paragraph a quotation."""
    quotations = re.findall(r"^>.*", prose(page), re.MULTILINE)
    assert quotations == [], f"{name(page)}: {quotations}"
