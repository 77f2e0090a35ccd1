"""The parts of a report that are tables and text: recipe, environment, cost, health, and the data behind figures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from steadyspike.disk.plain_text import duration
from steadyspike.report.markup import Markup, data_table, joined, number, table, tag
from steadyspike.report.run_view import RunView
from steadyspike.train.files.environment import size
from steadyspike.train.recipe import toml
from steadyspike.train.recipe.identity import keys_of
from steadyspike.train.recipe.schema import Recipe

_WHERE = (("Python", "python"), ("platform", "platform"), ("processor", "cpu"), ("threads", "threads"),
          ("cores", "cores"), ("commit", "commit"))  # fmt: skip

MOST = 60  # the most runs with their own tables, so that the page stays small


def per_run(runs: Sequence[RunView], make: Any) -> Markup:
    """Returns ``make(run)`` for every run, closed under its label if there are several."""
    if len(runs) == 1:
        return Markup(make(runs[0]))
    if len(runs) > MOST:
        return tag("p", f"Left out for {len(runs)} runs: a report of at most {MOST} runs has it.", class_="quiet")
    return joined(tag("details", tag("summary", run.label), make(run), class_="run") for run in runs)


def curves_table(runs: Sequence[RunView], kind: str) -> Markup:
    """The loss, or the measure ("score"), of every epoch and run."""
    head, columns = ["epoch"], []
    for run in runs:
        mark = f"{run.label}, " if len(runs) > 1 else ""
        title = f" {run.measure.title}" if kind == "score" else ""
        shown = {"training": run.metrics.get("train_accuracy" if kind == "score" else "train_loss", [])}
        if run.part:
            shown[run.part] = run.curve() if kind == "score" else run.metrics.get(f"{run.part}_loss", [])
        for name, values in shown.items():
            if values:
                head.append(f"{mark}{name}{title}")
                columns.append((dict(zip(run.epochs, values)), run.measure.digits if kind == "score" else 4))
    epochs = sorted({epoch for run in runs for epoch in run.epochs})
    rows = [(epoch, *(number(column.get(epoch), digits) for column, digits in columns)) for epoch in epochs]
    return data_table(f"{runs[0].measure.title if kind == 'score' else kind} by epoch", head, rows)


def steps_table(runs: Sequence[RunView]) -> Markup:
    """Test accuracy after each number of time steps."""
    scores = {run.label: run.test_scores() for run in runs if run.kind.classifies}
    most = max(map(len, scores.values()), default=0)
    rows = [(name, *map(number, values), *[""] * (most - len(values))) for name, values in scores.items()]
    return data_table("test accuracy (%) after each time step", ("run", *range(1, most + 1)), rows)


def layers_table(run: RunView) -> Markup:
    """All layers after the last epoch; the script can show any other epoch."""
    history = run.layers
    if not history.epochs:
        return tag("p", "No epoch has ended yet.")
    quantities = ("threshold", "tau", "running_mean", "rate", "silent", "gradient")
    rows = []
    for index, name in enumerate(history.names):
        rates = ", ".join(number(r, 3) for r in history.rates[-1][index])
        rows.append((name, *(number(history.values[q][-1][index], 4) for q in quantities), rates))
    head = ("layer", "V", "tau", "running mean", "firing rate", "silent share", "gradient norm", "rate by time step")
    return data_table(f"layers of {run.label} after epoch {history.epochs[-1]}", head, rows)


def health(run: RunView) -> Markup:
    """The findings of the health checks."""
    if not run.health:
        return tag("p", "Nothing was found: no layer became silent, and nothing diverged.")
    rows = [tuple(row.get(key, "") for key in ("epoch", "kind", "layer", "message")) for row in run.health[:200]]
    more = tag("p", f"... and {len(run.health) - 200} more in health.csv") if len(run.health) > 200 else ""
    return joined([table(f"Findings in {run.label}", ("epoch", "kind", "layer", "what was found"), rows), more])


def cost(run: RunView) -> Markup:
    """Time, memory, size and energy, as far as they were measured."""
    rows: list[tuple[str, str]] = []
    if (parameters := run.about.get("parameters")) is not None:
        rows.append(("parameters", f"{parameters:,}"))
    if (took := run.result.get("seconds")) is not None:
        rows.append(("time from the last start to the end", duration(took)))
    memory = run.result.get("memory") or {}
    rows += [(f"largest memory used, {device}", size(count)) for device, count in memory.items() if count]
    energy = run.energy
    if energy is not None:
        if "samples" in energy:
            rows.append(("counted on", f"{energy['samples']} test samples"))
        rows.append(("accumulates (AC) per sample", f"{energy['acs']:,.0f}"))
        rows.append(("multiply-accumulates (MAC) per sample", f"{energy['macs']:,.0f}"))
        rows += [(f"energy per sample, {name}", f"{mj * 1e3:.4g} µJ") for name, mj in energy["energy"].items()]
    unknown = [
        name for name, there in (("energy: `steadyspike energy` measures it", energy), ("memory", memory)) if not there
    ]
    return joined([
        table(f"Cost of {run.label}", ("what", "value"), rows, class_="pairs") if rows else "",
        tag("p", f"Not known: {'; '.join(unknown)}.", class_="quiet") if unknown else "",
    ])  # fmt: skip


def recipe(run: RunView) -> Markup:
    """Every key; keys that differ from the base are marked, with the value of the base."""
    values, defaults, origin = keys_of(run.recipe), keys_of(Recipe()), run.origin
    base = (origin or {}).get("base")
    changed = {c["key"]: c for c in origin["changed"]} if origin else {
        key: {"base": defaults.get(key), "by": "recipe"} for key, value in values.items() if value != defaults.get(key)
    }  # fmt: skip
    against = f"the recipe {base}" if base else "the defaults"
    body = []
    for key, value in values.items():
        change = changed.get(key)
        text = "left out" if value is None else toml.text(value)
        if change is None:
            body.append(tag("tr", tag("th", key, scope="row"), tag("td", text), tag("td", "")))
            continue
        before = "left out" if change["base"] is None else _text(change["base"])
        note = f"{before} ({'set on the command line' if change['by'] == '--set' else 'changed by the recipe'})"
        body.append(
            tag("tr", tag("th", key, scope="row"), tag("td", tag("mark", text)), tag("td", note), class_="changed")
        )
    head = tag("tr", *(tag("th", name, scope="col") for name in ("key", "value", f"in {against}")))
    caption = f"Recipe {run.name} of {run.label}: {len(changed)} keys differ from {against} and are marked"
    inside = tag("table", tag("caption", caption), tag("thead", head), tag("tbody", *body), class_="recipe pairs")
    notes = [tag("p", text) for text in (run.recipe.about, run.recipe.note) if text]
    return joined([*notes, tag("div", inside, class_="scroll", tabindex="0", role="region", aria_label=caption)])


def _text(value: Any) -> str:
    try:
        return toml.text(value)
    except TypeError:
        return str(value)


def environment(run: RunView) -> Markup:
    """Versions, hardware and commit; data and split with fingerprints."""
    rows: list[tuple[str, object]] = []
    where, data = run.about.get("environment", {}), run.about.get("data", {})
    packages = ", ".join(f"{name} {version}" for name, version in where.get("packages", {}).items() if version)
    rows += [(name, where[key]) for name, key in _WHERE if where.get(key) is not None]
    rows += [("packages", packages)] if packages else []
    rows += [("GPUs", ", ".join(where["gpus"]))] if where.get("gpus") else []
    rows += [("command", " ".join(map(str, where["command"])))] if where.get("command") else []
    rows += [("processes", run.about["processes"])] if "processes" in run.about else []
    if data:
        rows.append(("data", f"{data.get('name')}: {data.get('classes')} classes, {data.get('shape')}"))
    split = data.get("split", {})
    if split:
        rows.append(("split", f"{split.get('name')} (fingerprint {split.get('fingerprint')})"))
        for part, about in split.get("parts", {}).items():
            rows.append((f"{part} part", f"{about.get('samples')} samples (fingerprint {about.get('fingerprint')})"))
    rows.append(("folder", str(run.root)))
    return table(f"Environment and data of {run.label}", ("what", "value"), rows, class_="pairs")
