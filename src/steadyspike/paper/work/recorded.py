"""Recorded numbers (`results.measured`) by recipe: the means and spreads that pages and lists show."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from steadyspike.paper.work.over_seeds import Summary
from steadyspike.results.measured import Measured, Spread, packaged_results


class Recorded:
    """Entries by recipe. ``used`` collects the entries of a page, for the line that names their machines.

    For every seed the newest run is used. Some older runs recorded only a mean over their seeds. If it covers more
    seeds than there are single runs, the mean is used instead.
    """

    def __init__(self, entries: Iterable[Measured] | None = None) -> None:
        self._entries: dict[str, list[Measured]] = {}
        for entry in packaged_results() if entries is None else entries:
            self._entries.setdefault(entry.recipe, []).append(entry)
        self.used: list[Measured] = []

    def of(self, recipe: str) -> list[Measured]:
        """Returns all entries of a recipe, oldest first."""
        return self._entries.get(recipe, [])

    def newest(self, recipe: str) -> list[Measured]:
        """Returns the newest run of every seed."""
        runs = {entry.seed: entry for entry in self.of(recipe) if isinstance(entry.seed, int)}
        return [runs[seed] for seed in sorted(runs)]

    def summary(self, recipe: str, number: str = "") -> Summary | None:
        """Returns mean and spread of the main number, or of another of the entries' numbers; None if there is none."""
        runs = [e for e in self.newest(recipe) if not e.note and isinstance(_number(e, number), float)]
        values = [value for e in runs if isinstance(value := _number(e, number), float)]
        means = [e for e in self.of(recipe) if isinstance(e.seed, list) and isinstance(_number(e, number), Spread)]
        if means and isinstance(means[-1].seed, list) and len(means[-1].seed) > len(values):
            spread = _number(means[-1], number)
            assert isinstance(spread, Spread)
            self.used.append(means[-1])
            return Summary(spread.mean, (spread.deviation or 0.0) ** 2, len(means[-1].seed))
        self.used += runs
        return Summary.of(values)

    def ended_otherwise(self, recipe: str) -> str:
        """Returns how unfinished runs ended, such as "1 diverged"; "" if all finished."""
        notes = [entry.note for entry in self.newest(recipe) if entry.note]
        return f"{len(notes)} {', '.join(sorted(set(notes)))}" if notes else ""

    def series(self, recipe: str, number: str) -> list[float]:
        """Returns the newest entry's numbers per time step."""
        entry = next(e for e in reversed(self.of(recipe)) if isinstance(e.numbers.get(number), list))
        recorded = entry.numbers[number]
        assert isinstance(recorded, list)
        self.used.append(entry)
        return recorded

    def stamp(self) -> str:
        """Returns the sources of the entries used; call it once at the end of a page's part."""
        used, self.used = self.used, []
        return stamp(used)


def _number(entry: Measured, name: str) -> float | list[float] | Spread | None:
    if name:
        return entry.numbers.get(name)
    return Spread(mean=entry.value, deviation=entry.deviation) if isinstance(entry.seed, list) else entry.value


def stamp(entries: Sequence[Measured]) -> str:
    """Returns hardware, torch, commits, seeds and days of some entries, in one line; "" without entries."""
    if not entries:
        return ""
    commits = {commit[:7] for entry in entries for commit in entry.commit.split(", ")}
    seeds = {seed for entry in entries for seed in (entry.seed if isinstance(entry.seed, list) else [entry.seed])}
    days = sorted({entry.date for entry in entries})
    where = ["; ".join(sorted({entry.hardware for entry in entries}))]
    where += sorted({entry.software for entry in entries} - {""})
    where.append(f"commit {', '.join(sorted(commits))}")
    spread = " (± is the sample standard deviation)" if len(seeds) > 1 else ""
    where.append(f"seed{'s' * (len(seeds) > 1)} {', '.join(map(str, sorted(seeds)))}{spread}")
    where.append(days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}")
    return "; ".join(where) + "."
