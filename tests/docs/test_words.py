"""The words of pages, docstrings, comments, messages and names follow CONTRIBUTING.md.

`python -m tests.docs.words` lists every place.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs import words
from tests.docs.markdown import ROOT, pages
from tests.docs.words import broken_rules, final_periods, findings, other_sources, sources, vague_names

KINDS = ("sentences", "final periods", "vague names")
OWN = {ROOT / "tests" / "docs" / "words.py", ROOT / "tests" / "docs" / "test_words.py"}


def checked(kind: str) -> list[str]:
    files = [path for path in sources() if path not in OWN]
    if kind == "sentences":
        return findings([*pages(), *files, *other_sources()])
    return final_periods(files) if kind == "final periods" else vague_names(files)


@pytest.mark.parametrize("kind", KINDS)
def test_no_file_has_a_banned_pattern(kind: str) -> None:
    places = checked(kind)
    assert not places, "\n".join([f"{len(places)} {kind}:", *places])


@pytest.mark.parametrize("code", ["found = 1", "def f(wanted): ...", "self.place = 2", "def known(): ...", "_said = 3"])
def test_vague_names_are_found(code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(words, "ROOT", tmp_path)
    (tmp_path / "code.py").write_text(code)
    assert len(vague_names([tmp_path / "code.py"])) == 1


@pytest.mark.parametrize(("name", "text"), [("a.h", "n;  // harms nobody"), ("a.toml", 'note = "the paper says so"')])
def test_comments_of_kernels_and_descriptions_of_recipes_are_read(name: str, text: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    assert [number for number, sentence in words.sentences(tmp_path / name) if broken_rules(sentence)] == [1]


@pytest.mark.parametrize(
    "sentence",
    [
        "harms nobody", "The file says so.", "no error is told", "it is no number", "Where nothing fires, it is 0.",
        "None where the layer is silent", "DataError where it is damaged", "it runs in a process of its own",
        "is kept as it is", "layers one behind the other",
    ],
)  # fmt: skip
def test_the_search_finds_what_it_looks_for(sentence: str) -> None:
    assert broken_rules(sentence)


@pytest.mark.parametrize("sentence", ["There is no GPU.", "the folder where data lie", "it is no longer needed"])
def test_good_sentences_pass(sentence: str) -> None:
    assert not broken_rules(sentence)
