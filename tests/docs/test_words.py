"""The words of pages, docstrings, comments and messages follow CONTRIBUTING.md; what is left from before only shrinks.

`python -m tests.docs.words` lists every place.
"""

from __future__ import annotations

import pytest

from tests.docs.markdown import ROOT, pages
from tests.docs.words import broken_rules, final_periods, findings, sources, vague_names

# Periods and names from before these rules, and a few false alarms of sentences: the patterns are blunt. Lower a number
# when you rewrite some; never raise one.
LEFT = {"sentences": 12, "final periods": 12, "vague names": 600}
OWN = {ROOT / "tests" / "docs" / "words.py", ROOT / "tests" / "docs" / "test_words.py"}


def checked(kind: str) -> list[str]:
    files = [path for path in sources() if path not in OWN]
    if kind == "sentences":
        return findings([*pages(), *files])
    return final_periods(files) if kind == "final periods" else vague_names(files)


@pytest.mark.parametrize("kind", LEFT)
def test_banned_patterns_only_become_fewer(kind: str) -> None:
    places = checked(kind)
    summary = f"{len(places)} {kind}, {LEFT[kind]} are allowed; new ones are among"
    assert len(places) <= LEFT[kind], "\n".join([summary, *places])


@pytest.mark.parametrize(
    "sentence",
    [
        "harms nobody", "The file says so.", "no error is told", "it is no number", "Where nothing fires, it is 0.",
        "None where the layer is silent",
    ],
)  # fmt: skip
def test_the_search_finds_what_it_looks_for(sentence: str) -> None:
    assert broken_rules(sentence)


@pytest.mark.parametrize("sentence", ["There is no GPU.", "the folder where data lie", "it is no longer needed"])
def test_good_sentences_pass(sentence: str) -> None:
    assert not broken_rules(sentence)
