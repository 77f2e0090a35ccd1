"""The output of a command: tables with the paper's and the measured value, claims with verdicts, figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from steadyspike.paper.work.over_seeds import Summary, judged
from steadyspike.paper.work.store import Result

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NOT_RUN = "not run"


@dataclass
class Table:
    """A table of texts, and below it the paper's claims and whether they held."""

    title: str
    head: list[str]
    rows: list[list[str]] = field(default_factory=list)
    claims: list[str] = field(default_factory=list)

    def markdown(self) -> str:
        lines = [f"| {' | '.join(self.head)} |", "|" + "---|" * len(self.head)]
        lines += [f"| {' | '.join(row)} |" for row in self.rows]
        claims = ["", *(f"- {claim}" for claim in self.claims)] if self.claims else []
        return "\n".join([f"**{self.title}**", "", *lines, *claims])

    def text(self) -> str:
        """Formats the table in columns, for a terminal."""
        cells = [self.head, *self.rows]
        widths = [max(len(row[i]) for row in cells) for i in range(len(self.head))]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in cells]
        lines.insert(1, "  ".join("-" * width for width in widths))
        return "\n".join([self.title, "", *lines, *([""] if self.claims else []), *self.claims])


@dataclass
class Page:
    """The result of a command."""

    title: str
    tables: list[Table] = field(default_factory=list)
    figures: dict[str, Figure] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def markdown(self) -> str:
        images = [f"![{name}]({name}.png)" for name in self.figures]
        notes = [f"- {note}" for note in self.notes]
        parts = [f"# {self.title}", *(table.markdown() for table in self.tables), *images, *notes]
        return "\n\n".join(parts) + "\n"

    def text(self) -> str:
        notes = ["\n".join(f"note: {note}" for note in self.notes)] if self.notes else []
        return "\n\n".join([self.title, *(t.text() for t in self.tables), *notes])


def finals(results: Sequence[Result]) -> list[float]:
    """Returns the test accuracy after the last step of the runs that finished."""
    return [r.accuracy[-1] for r in results if r.finished]


def spread(values: Sequence[float], digits: int = 2) -> str:
    """Returns ``"76.09 ± 0.04 (3 seeds)"``; "not run" if there are no values."""
    summary = Summary.of(values)
    return NOT_RUN if summary is None else summary.written(digits)


def measured(results: Sequence[Result], step: int = -1) -> str:
    """The accuracy of all runs of a row as `spread`, and how the unfinished runs ended, so that no run is hidden."""
    values = [r.accuracy[step] for r in results if r.finished]
    other = sorted({r.status for r in results if not r.finished})
    count = sum(not r.finished for r in results)
    ends = f"{count} {', '.join(other)}" if other else ""
    if not results:
        return NOT_RUN
    return "; ".join([*([spread(values)] if values else []), *([ends] if ends else [])])


def verdict(better: Sequence[float], worse: Sequence[float]) -> str:
    """Judges whether ``better`` is above ``worse``, by the standard error of the difference of means."""
    return judged(Summary.of(better), Summary.of(worse))


def claim(text: str, better: Sequence[float], worse: Sequence[float]) -> str:
    """Returns a claim of the paper with its verdict."""
    return f"{text}: {verdict(better, worse)}"
