"""Every table and figure of the paper and its supplement, by name."""

from __future__ import annotations

from difflib import get_close_matches

from steadyspike.paper.experiments import (
    ablation,
    alternatives,
    comparisons,
    frozen,
    networks,
    simulations,
    stationarity,
    sweeps,
)
from steadyspike.paper.work.experiment import Experiment
from steadyspike.train.recipe import RecipeError

_MODULES = (ablation, comparisons, frozen, networks, stationarity, sweeps, simulations, alternatives)


def _order(experiment: Experiment) -> tuple[int, int]:
    """Sorts tables first, then figures, then the rest; by number."""
    kinds = [i for i, kind in enumerate(("table", "figure")) if experiment.where.startswith(kind)]
    numbers = [int(word) for word in experiment.where.split() if word.isdigit()]
    return (kinds[0], numbers[0]) if kinds else (2, 0)


EXPERIMENTS: dict[str, Experiment] = {
    experiment.name: experiment
    for experiment in sorted((e for module in _MODULES for e in module.EXPERIMENTS), key=_order)
}


def find(name: str) -> Experiment:
    """Returns an experiment by its name, or by its number in the paper: ``table-2``, ``figure-9``."""
    if name in EXPERIMENTS:
        return EXPERIMENTS[name]
    label = name.lower().replace("-", " ")
    matching = [e for e in EXPERIMENTS.values() if _is_at(e.where, label)]
    if len(matching) == 1:
        return matching[0]
    near = get_close_matches(name, list(EXPERIMENTS), n=3)
    hint = f"; did you mean {' or '.join(near)}?" if near else ""
    raise RecipeError(f"there is no table or figure {name!r}{hint} (`steadyspike reproduce --list` shows them)")


def _is_at(where: str, label: str) -> bool:
    """Returns whether ``where`` ("table 2", "figures 4 and 5", "tables 7 to 9") includes ``place`` ("table 4")."""
    kind, _, number = label.partition(" ")
    words = where.split()
    if kind not in ("table", "figure") or not number.isdigit() or not words or words[0].rstrip("s") != kind:
        return False
    numbers = [int(word) for word in words if word.isdigit()]
    if "to" in words:
        numbers = list(range(numbers[0], numbers[-1] + 1))
    return int(number) in numbers
