"""A table of accuracies: the paper's value, the measured one, the first step's, and what stands beside it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from steadyspike.analysis.reproduce.flow import COLUMNS, flow_cells
from steadyspike.analysis.reproduce.page import MEASURED, PAPER, Claim, Table, claim, finals, measured
from steadyspike.analysis.reproduce.work import Case, Work, published_text


def accuracy_table(
    work: Work, title: str, cases: Sequence[Case], claims: Sequence[Claim] = (), beside: bool = True
) -> Table:
    """One row per case, whether it ran or not. beside: also firing rate, gradient metrics and membrane shift."""
    published = any(case.paper and case.published() is not None for case in cases)
    head = ["configuration", *([PAPER] if published else []), MEASURED, "after step 1 (%)"]
    table = Table(title, [*head, *(COLUMNS if beside else ())], compared=list(claims))
    for case in cases:
        results = work.results(case)
        paper = [published_text(case)] if published else []
        cells = flow_cells(work, results) if beside else []
        table.rows.append([case.label, *paper, measured(results), measured(results, 0), *cells])
    by_label = {case.label: case for case in cases}
    for text, better, worse in claims:
        pair = (finals(work.results(by_label[label])) for label in (better, worse))
        table.claims.append(claim(text, *pair))
    return table


def in_order(cases: Sequence[Case]) -> list[Claim]:
    """The claims that every case is above the one before it, as the paper's numbers are."""
    return [(f"{b.label} above {a.label}", b.label, a.label) for a, b in pairwise(cases)]
