"""Rows that a page has and a folder of runs has not: they keep their text when the page is written again.

A row is known by its section, its table and its label. Seeds of the page and of the folder are never put into one row:
the page has their mean only, and nobody could tell whether two of them are the same seed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from steadyspike.analysis.reproduce.over_seeds import Summary, judged
from steadyspike.analysis.reproduce.page import MEASURED, PAPER, Page, Table

_TABLE = re.compile(r"\*\*(.+)\*\*$")
_ENDED = re.compile(r"(?:^|; )(\d+) [a-z]")  # "1 diverged", alone or behind the mean of the runs that finished
_COMMITS = re.compile(r"; commit (.*?); ")


class Refused(Exception):
    """The page cannot be written without losing a row, or without mixing what does not belong together."""


class Key(NamedTuple):
    """Where a row, or a claim, stands; ``label`` is the row's first cell, or the claim's text."""

    section: str
    table: str
    label: str


class Written(NamedTuple):
    """What a page says: cells of rows by the names of their columns, verdicts of claims, and the line at its end."""

    rows: dict[Key, dict[str, str]]
    verdicts: dict[Key, str]
    stamp: str


def read(page: str) -> Written:
    """The tables of a page as `Table.markdown` writes them, under headings of three marks.

    Refused where it cannot be told which row is meant: two of one name, or one with more or fewer cells than the head.
    """
    written = Written({}, {}, next((line for line in reversed(page.splitlines()) if "; commit " in line), ""))
    section = table = ""
    head: list[str] = []
    titles: set[tuple[str, str]] = set()
    for line in page.splitlines():
        if line.startswith("### "):
            section, table, head = line[4:], "", []
        elif found := _TABLE.match(line):
            table, head = found.group(1), []
            if (section, table) in titles:
                raise Refused(f"the page has two tables {section} / {table}: give each a title of its own")
            titles.add((section, table))
        elif line.startswith("|---"):
            continue
        elif line.startswith("| "):
            cells = line[2:-2].split(" | ")
            if head:
                key = Key(section, table, cells[0])
                if len(cells) != len(head):
                    raise Refused(
                        f"the row {' / '.join(key)} has {len(cells)} cells, its table has {len(head)} columns"
                    )
                if key in written.rows:
                    raise Refused(f"the page has two rows {' / '.join(key)}: take one out by hand")
                written.rows[key] = dict(zip(head, cells, strict=True))
            else:
                head = cells
        elif line.startswith("- ") and ": " in line:
            text, _, verdict = line[2:].partition(": ")
            written.verdicts[Key(section, table, text)] = verdict
    return written


def runs_in(cell: str) -> int:
    """How many runs a cell of `MEASURED` stands for: those that finished, and those that ended otherwise."""
    finished = Summary.read(cell)
    return (finished.seeds if finished else 0) + sum(int(count) for count in _ENDED.findall(cell))


def keep(table: Table, section: str, before: Written) -> list[Key]:
    """Puts the page's rows into ``table`` where it has fewer runs, judges its claims again; the rows that were put.

    A kept row has no number of the folder's: "-" stands in a column that the page lacks. The paper's value is no
    measurement, and is the recipe's in every row.
    """
    kept = []
    measured = table.head.index(MEASURED)
    for row in table.rows:
        key = Key(section, table.title, row[0])
        old = before.rows.get(key)
        if old is not None and runs_in(row[measured]) < runs_in(old.get(MEASURED, "")):
            row[1:] = [
                cell if name == PAPER else old.get(name, "-")
                for name, cell in zip(table.head[1:], row[1:], strict=True)
            ]
            kept.append(key)
    _judge_again(table, section, before.verdicts, {key.label for key in kept})
    return kept


def _judge_again(table: Table, section: str, verdicts: Mapping[Key, str], kept: set[str]) -> None:
    """The claims that name a kept row; one about two kept rows keeps its verdict, which was made from all digits."""
    cells = {row[0]: row[table.head.index(MEASURED)] for row in table.rows}
    for index, (text, better, worse) in enumerate(table.compared):
        if not {better, worse} & kept:
            continue
        verdict = verdicts.get(Key(section, table.title, text)) if {better, worse} <= kept else None
        if verdict is None:
            verdict = judged(Summary.read(cells[better]), Summary.read(cells[worse]))
        table.claims[index] = f"{text}: {verdict}"


def keep_all(pages: Iterable[Page], before: Written) -> list[Key]:
    """`keep` for every table of the pages; an error for a row of the page that none of the tables has."""
    kept, there = [], set()
    for page in pages:
        for table in page.tables:
            kept += keep(table, page.title, before)
            there |= {Key(page.title, table.title, row[0]) for row in table.rows}
    lost = [key for key, row in before.rows.items() if key not in there and runs_in(row.get(MEASURED, ""))]
    if lost:
        names = "\n".join(f"  {' / '.join(key)}" for key in lost)
        raise Refused(f"the page has rows that no table has; take them out by hand, or give their names back:\n{names}")
    return kept


def stamp_of_both(now: str, before: str, kept: Sequence[Key]) -> str:
    """The line at the end: ``now`` for the runs of the folder; with kept rows also the commits of the page.

    An error where the page's rows ran on something else: numbers of two machines do not belong into one table.
    """
    if not kept:
        return now
    machine, was = (line.partition("; commit ")[0] for line in (now, before))
    if machine != was:
        raise Refused(f"the page's rows ran on {was or 'an unknown machine'!r}, these on {machine!r}: not written")
    commits = sorted({commit for line in (now, before) for commit in _commits(line)})
    line = _COMMITS.sub(lambda _: f"; commit {', '.join(commits)}; ", now)
    rows = f"{len(kept)} rows were" if len(kept) > 1 else "1 row was"
    return f"{line} {rows} kept from before: trained on a machine of the same name, and not again with the others."


def _commits(line: str) -> list[str]:
    found = _COMMITS.search(line)
    return found.group(1).split(", ") if found and found.group(1) else []
