"""A table of accuracies: the paper's value, the measured one, that of the first step, and further columns."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from steadyspike.paper.work.flow import COLUMNS, flow_cells
from steadyspike.paper.work.over_seeds import Summary, judged
from steadyspike.paper.work.page import Table
from steadyspike.paper.work.work import Case, Work, published_text

PAPER = "paper (%)"  # the column of the paper's accuracies
MEASURED = "measured (%)"  # the column of the accuracies that claims are about
Claim = tuple[str, str, str]  # text, label of the better row, label of the worse one


def accuracy_table(
    work: Work, title: str, cases: Sequence[Case], claims: Sequence[Claim] = (), beside: bool = True
) -> Table:
    """Returns one row per case, also for cases that did not run.

    beside: also firing rate, gradient metrics and membrane shift
    """
    published = any(case.paper and case.published() is not None for case in cases)
    head = ["configuration", *([PAPER] if published else []), MEASURED, "after step 1 (%)"]
    table = Table(title, [*head, *(COLUMNS if beside else ())])
    finals: dict[str, Summary | None] = {}
    for case in cases:
        row = work.row(case, beside)
        paper = [published_text(case)] if published else []
        table.rows.append([case.label, *paper, row.measured, row.first, *(flow_cells(row.flow) if beside else [])])
        finals[case.label] = row.final
    table.claims += [f"{text}: {judged(finals[better], finals[worse])}" for text, better, worse in claims]
    return table


def in_order(cases: Sequence[Case]) -> list[Claim]:
    """Returns the claims that every case is above the previous one, as the paper's numbers are."""
    return [(f"{b.label} above {a.label}", b.label, a.label) for a, b in pairwise(cases)]
