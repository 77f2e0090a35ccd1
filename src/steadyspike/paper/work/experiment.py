"""`Experiment`: a table or figure of the paper that can be made by a command."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from steadyspike.paper.work.page import Page
from steadyspike.paper.work.work import Case, Work


def no_cases(scale: str) -> list[Case]:
    """Raises an error; for experiments without training."""
    return []


@dataclass(frozen=True)
class Experiment:
    """name: for the command
    where: in the paper
    title: one line
    page: makes tables and figures from the finished runs

    cases: the configurations that it trains at a scale
    scales: the scales at which it can run
    seeds: the default number of seeds
    """

    name: str
    where: str
    title: str
    page: Callable[[Work], Page]
    cases: Callable[[str], list[Case]] = no_cases
    scales: tuple[str, ...] = ("mini", "paper")
    seeds: int = 3
