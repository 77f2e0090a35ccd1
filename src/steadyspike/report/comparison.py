"""Comparison of several runs: keys in which recipes differ, and the spread of runs that differ only in the seed."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from steadyspike.report.run_view import RunView
from steadyspike.train.recipe.identity import configuration, keys_of
from steadyspike.train.recipe.kinds import Measure


class Group(NamedTuple):
    """Runs of one configuration, with mean and spread (sample standard deviation) of those that have ended."""

    runs: list[RunView]
    mean: float | None
    spread: float | None
    ended: int

    @property
    def measure(self) -> Measure:
        return self.runs[0].measure

    @property
    def seeds(self) -> list[int]:
        return [run.recipe.train.seed for run in self.runs]


def best_first(runs: Sequence[RunView]) -> list[RunView]:
    """Sorts runs with a test score by this score, then the others by their best epoch so far, then those with neither.

    Scores of different measures are not compared: those of the first run's measure come first.
    """
    measures = list(dict.fromkeys(run.measure for run in runs))

    def rank(run: RunView) -> tuple[int, bool, bool, float]:
        score = run.score()
        order = measures.index(run.measure)
        return order, score is None, score is not None and not score.final, -score.value if score is not None else 0.0

    return sorted(runs, key=rank)


def tested_on(runs: Sequence[RunView]) -> str | None:
    """Returns a sentence if the runs were tested on different samples.

    A run without a record of its split is ignored.
    """
    splits: dict[tuple[str, str], None] = {}
    for run in runs:
        data = run.about.get("data", {})
        test = data.get("split", {}).get("parts", {}).get("test", {})
        if test:
            splits[str(data.get("name")), str(test.get("fingerprint"))] = None
    if len(splits) < 2:
        return None
    names = list(dict.fromkeys(name for name, _ in splits))
    return f"The runs were tested on different samples ({', '.join(names)}), so their order means little."


def groups(runs: Sequence[RunView]) -> list[Group]:
    """Returns runs that share a configuration, the group with the best mean first."""
    by_key: dict[str, list[RunView]] = {}
    for run in best_first(runs):
        by_key.setdefault(json.dumps(configuration(run.recipe), sort_keys=True), []).append(run)
    all_groups = [_group(members) for members in by_key.values()]
    measures = list(dict.fromkeys(group.measure for group in all_groups))
    return sorted(
        all_groups, key=lambda group: (measures.index(group.measure), group.mean is None, -(group.mean or 0.0))
    )


def _group(runs: list[RunView]) -> Group:
    scores = [score.value for run in runs if (score := run.score()) is not None and score.final]
    return Group(
        runs,
        statistics.mean(scores) if scores else None,
        statistics.stdev(scores) if len(scores) > 1 else None,
        len(scores),
    )


def differing_keys(runs: Sequence[RunView], *, seeds: bool = True) -> dict[str, list[Any]]:
    """Returns key -> its value in every run (None: the run has no such key), for keys in which the runs differ."""
    flat = [dict(_leaves("", keys_of(run.recipe) if seeds else configuration(run.recipe))) for run in runs]
    names = list(dict.fromkeys(name for one in flat for name in one))
    values = {name: [one.get(name) for one in flat] for name in names}
    return {name: by_run for name, by_run in values.items() if any(value != by_run[0] for value in by_run)}


def _leaves(path: str, item: Any) -> Iterator[tuple[str, Any]]:
    """Yields ``("model.options.dropout", 0.1)`` for every value below a table."""
    if isinstance(item, dict):
        for key, value in item.items():
            yield from _leaves(f"{path}.{key}" if path else key, value)
    else:
        yield path, item
