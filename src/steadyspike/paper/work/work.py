"""The parts of an experiment: its scale, its runs and their measurements."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from steadyspike.paper.work.flow import mean_flow
from steadyspike.paper.work.over_seeds import Summary
from steadyspike.paper.work.page import finals, measured
from steadyspike.paper.work.planned_run import Run, seeded
from steadyspike.paper.work.scales import Scale
from steadyspike.paper.work.store import Arrays, Result, Store
from steadyspike.train.recipe import load_recipe
from steadyspike.train.recipe.schema import Paper

if TYPE_CHECKING:
    from steadyspike.train.run.loading import LoadedRun


@dataclass(frozen=True)
class Case:
    """One configuration: its label, its recipe at the paper's scale, and its recipe in the deep evidence, if any.

    group: the data set or block of a table that it belongs to
    own: it is not in the paper; its small form is made from the deep recipe
    """

    label: str
    paper: str
    deep: str = ""
    group: str = ""
    own: bool = False

    def published(self) -> Paper | None:
        return load_recipe(self.paper).paper if self.paper else None


class Row(NamedTuple):
    """Accuracy over seeds after the last and the first step, as texts, and means of `flow.COLUMNS`."""

    final: Summary | None
    measured: str
    first: str
    flow: Mapping[str, float | None]


def say_nothing(text: str) -> None:
    """The default of `Work.announce`."""


@dataclass(frozen=True)
class Work:
    """An experiment at one scale.

    announce: called with the name of the next measurement, because that can take a while
    """

    scale: Scale
    seeds: int
    store: Store
    data_dir: Path | None = None
    announce: Callable[[str], None] = say_nothing

    def runs(self, case: Case) -> list[Run]:
        """Returns the runs of a case, one per seed."""
        recipe, settings = self.scale.recipe(case.paper, case.deep, case.own)
        return seeded(recipe, self.seeds, settings)

    def heading(self, case: Case, paper: str) -> str:
        """Returns the heading ``paper``, completed by the data that small runs use instead of the paper's."""
        if self.scale.name != "mini":
            return paper
        data = self.runs(case)[0].load().data
        steps = f", T = {data.timesteps}" if "T = " in paper else ""
        return f"mini: {data.name}{steps} (paper: {paper})"

    def all_runs(self, cases: Iterable[Case]) -> list[Run]:
        """The runs of all cases, seed by seed, so that a list that was stopped early has equal numbers of seeds."""
        rows = [self.runs(case) for case in cases]
        return [row[seed] for seed in range(self.seeds) for row in rows]

    def results(self, case: Case) -> list[Result]:
        """Returns the finished results of a case."""
        return [stored for run in self.runs(case) if (stored := self.store.result(run)) is not None]

    def row(self, case: Case, beside: bool) -> Row:
        """Returns what a table of accuracies shows of a case.

        beside: also the measurements of `flow`
        """
        results = self.results(case)
        final = Summary.of(finals(results))
        return Row(final, measured(results), measured(results, 0), mean_flow(self, results) if beside else {})

    def first(self, case: Case) -> Result | None:
        """Returns the first seed's result, for figures of one network."""
        return next(iter(self.results(case)), None)

    def load(self, result: Result) -> LoadedRun:
        from steadyspike.train.run.loading import load_run

        return load_run(result.folder, self.data_dir)

    def measure(self, result: Result, what: str, compute: Callable[[LoadedRun], Arrays]) -> Arrays:
        """Returns arrays measured on a trained network, stored by content; ``what`` names measurement and settings."""

        def fresh() -> Arrays:
            self.announce(f"measuring {result.run.label}")
            return compute(self.load(result))

        return self.store.measured(result.run, what, fresh)


def published_text(case: Case) -> str:
    """Returns the paper's value as printed."""
    paper = case.published()
    if paper is None:
        return "-"
    if paper.value is None:
        return paper.verdict
    digits = 3 if paper.value < 1 else 2
    return f"{paper.value:.{digits}f}" + (f" ± {paper.spread:.2f}" if paper.spread is not None else "")


def chains(cases: Sequence[Case]) -> list[list[Case]]:
    """Returns cases by group, in their order."""
    return [[case for case in cases if case.group == group] for group in dict.fromkeys(c.group for c in cases)]
