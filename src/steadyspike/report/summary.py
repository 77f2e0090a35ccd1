"""The top of a report: what was trained, its accuracy, and the baseline and published value for comparison."""

from __future__ import annotations

from collections.abc import Sequence

from steadyspike.disk.plain_text import duration
from steadyspike.report.comparison import best_first, differing_keys, groups, tested_on
from steadyspike.report.markup import Markup, joined, number, table, tag
from steadyspike.report.run_view import RunView
from steadyspike.results.measured import Measured, recorded
from steadyspike.train.recipe import RecipeError, find_recipe, load_recipe, toml
from steadyspike.train.recipe.identity import configuration
from steadyspike.train.recipe.kinds import imported


def summary(runs: Sequence[RunView], baseline: RunView | None) -> Markup:
    """Returns cards for one run; for several a table, best first, with differing keys and the spread over seeds."""
    return _one(runs[0]) if len(runs) == 1 else _several(runs, baseline)


def banner(run: RunView) -> Markup:
    """Returns lines about a run that did not finish normally, and about damaged files."""
    lines = [tag("p", tag("strong", f"{run.label}: "), text, class_="alarm") for text in run.warnings]
    if run.state.kind != "finished":
        kind = "notice" if not run.state.ended else "alarm"
        lines.insert(0, tag("p", tag("strong", f"{run.label}: {run.state.kind}. "), run.state.text, class_=kind))
    return joined(lines)


def _card(title: str, value: str, note: str = "", kind: str = "card") -> Markup:
    return tag("div", tag("dt", title), tag("dd", value, tag("small", note) if note else ""), class_=kind)


def chance(run: RunView) -> float | None:
    """Returns the accuracy of a constant guess, in percent."""
    classes = run.about.get("data", {}).get("classes")
    return 100 / classes if isinstance(classes, int) and classes > 0 else None


def _one(run: RunView) -> Markup:
    recipe, cards, score = run.recipe, [], run.score()
    if score is not None:
        steps = f"after {recipe.data.timesteps} time steps"
        note = f"{run.result.get('weights', '')}; {steps}" if score.final else f"best epoch so far; {steps}"
        cards.append(_card(f"{score.part} {run.measure.name}", run.measure.text(score.value), note, "card main"))
        if (guess := chance(run)) is not None and run.kind.classifies:
            cards.append(
                _card("a constant guess", f"{guess:.2f} %", f"{score.value - guess:+.2f} points compared with it")
            )
    if run.kind.cards and run.result.get("test"):
        cards += [_card(*texts) for texts in imported(run.kind.cards)(run.result["test"])]
    cards.append(_paper_card(run))
    for entry in _recorded(run)[-3:]:
        seeds = f"mean of {len(entry.seed)} seeds" if isinstance(entry.seed, list) else f"seed {entry.seed}"
        cards.append(_card("recorded before", f"{entry.value} {entry.unit}", f"{seeds}, {entry.date}"))
    done = run.epochs[-1] if run.epochs else 0
    took = run.result.get("seconds")
    cards.append(_card("epochs", f"{done} of {recipe.schedule.epochs}", "" if took is None else f"in {duration(took)}"))
    if run.health:
        cards.append(_card("health", f"{len(run.health)} findings", "see below", "card bad"))
    what = (
        f"{run.name}: {recipe.model.name} on {recipe.data.name}, neuron {recipe.neuron.name}, norm {recipe.norm.name}, "
        f"T = {recipe.data.timesteps}, seed {recipe.train.seed}."
    )
    about = [tag("p", what), tag("p", recipe.about) if recipe.about else ""]
    selection = run.result.get("selection")
    return joined([banner(run), *about, tag("dl", *cards, class_="cards"),
                   tag("p", f"{str(selection).capitalize()}.", class_="quiet") if selection else ""])  # fmt: skip


def _recorded(run: RunView) -> list[Measured]:
    """Returns what was recorded for the run's recipe, if the run still has its configuration."""
    try:
        same = configuration(load_recipe(run.name)) == configuration(run.recipe)
        return recorded(find_recipe(run.name)) if same else []
    except RecipeError:  # a file of the user's own
        return []


def _paper_card(run: RunView) -> Markup:
    paper, score = run.recipe.paper, run.score()
    if paper is None:
        return _card("the paper", "no number", "there is none for this configuration")
    if paper.value is None:
        return _card("the paper", paper.verdict, paper.where)
    spread = f" ± {paper.spread}" if paper.spread is not None else ""
    against = ""
    if score is not None and score.final and paper.unit in (run.measure.unit, run.measure.name):
        against = f"{run.measure.difference(score.value, paper.value)} against it; "
    return _card("the paper", f"{paper.value}{spread} {paper.unit}", f"{against}{paper.where}. {paper.note}")


def _several(runs: Sequence[RunView], baseline: RunView | None) -> Markup:
    """Compares runs with the baseline, or with the first one, which is then not called a baseline."""
    first, word = (runs[0], "first run") if baseline is None else (baseline, "baseline")
    ranked, several = best_first(runs), len({run.measure for run in runs}) > 1
    rows = []
    for rank, run in enumerate(ranked, 1):
        score, paper = run.score(), run.recipe.paper
        mark = "" if score is None or score.final else f" ({score.part}, so far)"
        name = f" {run.measure.name}" if several else ""
        best = next(one for one in ranked if one.measure == run.measure)
        took = run.result.get("seconds")
        rows.append([
            f"{rank}. {run.label}", run.name, run.state.kind,
            "–" if score is None else f"{run.measure.text(score.value)}{name}{mark}",
            word if run is first else against(run, first), against(run, best),
            "–" if paper is None or paper.value is None else f"{paper.value} {paper.unit}",
            run.recipe.train.seed, f"{run.epochs[-1] if run.epochs else 0}/{run.recipe.schedule.epochs}",
            "–" if took is None else duration(took),
        ])  # fmt: skip
    title = " or ".join(dict.fromkeys(run.measure.name for run in ranked))
    head = ("run", "recipe", "state", title, f"to {word}", "to best", "paper", "seed", "epochs", "took")
    parts: list[object] = [banner(run) for run in runs]
    if (other := tested_on(runs)) is not None:
        parts.append(tag("p", other, class_="notice"))
    parts.append(table(f"{len(runs)} runs, best first; {word}: {first.label}", head, rows))
    parts.append(_spread(runs))
    parts.append(_differences(ranked))
    return joined(parts)


def against(run: RunView, other: RunView) -> str:
    """Returns how much the score of one run is above another's; a dash if the two cannot be compared."""
    score, than = run.score(), other.score()
    if score is None or than is None or run.measure != other.measure:
        return "–"
    return run.measure.difference(score.value, than.value)


def _spread(runs: Sequence[RunView]) -> Markup:
    by_recipe = groups(runs)
    if all(len(group.runs) < 2 for group in by_recipe):
        return Markup("")
    rows = [
        (
            group.runs[0].label,
            ", ".join(map(str, group.seeds)),
            "–" if group.mean is None else f"{group.measure.text(group.mean)} {group.measure.name}",
            number(group.spread, group.measure.digits),
            group.ended,
        )
        for group in by_recipe
    ]
    head = ("configuration of", "seeds", "mean", "sample standard deviation", "runs that have ended")
    return table("Spread over seeds", head, rows)


def _differences(runs: Sequence[RunView]) -> Markup:
    differences = differing_keys(runs)
    if not differences:
        return tag("p", "The recipes of these runs are equal.")
    rows = [(key, *("left out" if v is None else toml.text(v) for v in values)) for key, values in differences.items()]
    return table("Keys of the recipes that differ", ("key", *(run.label for run in runs)), rows)
