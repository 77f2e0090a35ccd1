"""Builds a report: one HTML file that needs no other file and runs only its own script."""

from __future__ import annotations

import base64
import hashlib
import json
import time
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Any

from steadyspike.disk.plain_text import plain
from steadyspike.report import tables_page as tables
from steadyspike.report.markup import Markup, escape, joined, tag
from steadyspike.report.page_data import page_data
from steadyspike.report.run_view import RunView
from steadyspike.report.summary import summary
from steadyspike.train.files.atomic import write_atomically
from steadyspike.train.recipe.kinds import imported

SCRIPTS = (
    "elements.js",
    "line_chart.js",
    "heat_map.js",
    "curves.js",
    "layers.js",
    "network.js",
    "boxes.js",
    "start.js",
)
# Characters that could end a script element or begin markup are written as equivalent JSON escapes.
_JSON_ESCAPES = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"}


def write_report(runs: Sequence[RunView], path: Path, baseline: RunView | None = None) -> Path:
    """Writes the report of some runs; after a crash either the old file or the new one exists."""
    content = render(runs, baseline).encode()
    write_atomically(path, lambda file: file.write(content))
    return path


def _sections(runs: Sequence[RunView]) -> Markup:
    """Returns the parts of the page that kinds of runs add."""
    kinds = dict.fromkeys(run.kind for run in runs)
    return joined(imported(k.section)([run for run in runs if run.kind is k]) for k in kinds if k.section)


def render(runs: Sequence[RunView], baseline: RunView | None = None) -> str:
    """Returns the whole page."""
    title = runs[0].label if len(runs) == 1 else f"{len(runs)} runs"
    style, script, boxes = page_file("style.css"), wrapped(page_file(name) for name in SCRIPTS), _sections(runs)
    parts: dict[str, object] = {
        "policy": policy(style, script),
        "title": f"{title} · SteadySpike report",
        "heading": title,
        "state": _states(runs),
        "made": f"Made on {time.strftime('%Y-%m-%d %H:%M %Z')} by SteadySpike {version('steadyspike')}.",
        "style": Markup(style),
        "script": Markup(script),
        "data": Markup(embedded(page_data(runs))),
        "summary": summary(runs, baseline),
        "score-figures": _score_figures(runs),
        "loss-table": tables.curves_table(runs, "loss"),
        "steps-table": tables.steps_table(runs),
        "layers-table": tag("div", *(tables.layers_table(run) for run in runs), class_="plain"),
        "boxes-link": tag("li", tag("a", "Boxes", href="#boxes")) if boxes else "",
        "boxes": boxes,
        "notes": joined(tag("p", note, class_="quiet") for run in runs for note in run.notes),
        "health": tables.per_run(runs, tables.health),
        "cost": tables.per_run(runs, tables.cost),
        "recipe": tables.per_run(runs, tables.recipe),
        "environment": tables.per_run(runs, tables.environment),
    }
    return filled(page_file("page.html"), parts)


def filled(template: str, parts: dict[str, object]) -> str:
    """Replaces every ``{{name}}`` in a page by the parts, which are escaped unless they are markup."""
    pieces = template.split("{{")
    done = [pieces[0]]
    for piece in pieces[1:]:
        name, _, rest = piece.partition("}}")
        done += [escape(parts[name]), rest]
    return "".join(done)


def embedded(data: Any) -> str:
    """Returns JSON that cannot end its script element; its texts are spelled out as in `escape`."""
    text = json.dumps(_spelled_out(data), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for character, instead in _JSON_ESCAPES.items():
        text = text.replace(character, instead)
    return text


def _spelled_out(data: Any) -> Any:
    if isinstance(data, str):
        return plain(data, kept="\n\t")
    if isinstance(data, dict):
        return {key: _spelled_out(value) for key, value in data.items()}
    return [_spelled_out(item) for item in data] if isinstance(data, (list, tuple)) else data


def _states(runs: Sequence[RunView]) -> Markup:
    """Returns a word next to the heading: how the run ended, or that it has not ended."""
    kinds = list(dict.fromkeys(run.state.kind for run in runs))
    return joined(tag("span", kind, class_=f"state {'good' if kind == 'finished' else 'other'}") for kind in kinds)


def _score_figures(runs: Sequence[RunView]) -> Markup:
    """Returns accuracy or mAP by epoch: one figure for each, because they have no common scale."""
    figures = []
    for measure in dict.fromkeys(run.measure for run in runs):
        behind = tables.curves_table([run for run in runs if run.measure == measure], "score")
        caption = tag("figcaption", f"{_capital(measure.title)} by epoch")
        about = {"data_measure": measure.name, "data_title": measure.title, "data_unit": measure.unit}
        figures.append(tag("figure", caption, tag("div", class_="plot"), behind, class_="score", **about))
    return joined(figures)


def _capital(text: str) -> str:
    """Returns ``"Accuracy"``, but ``"mAP"``: only a word in small letters gets a capital."""
    return text[0].upper() + text[1:] if text[:2].islower() else text


def page_file(name: str) -> str:
    """Returns the text of a file of the report's page."""
    return (files("steadyspike") / "report" / "page" / name).read_text(encoding="utf-8")


def wrapped(scripts: Iterable[str]) -> str:
    """Returns the scripts as one, in their own scope."""
    return '(() => {\n"use strict";\n' + "\n".join(scripts) + "\n})();\n"


def policy(style: str, script: str) -> str:
    """A policy that allows only this page's own style and script, by their hashes, and pictures inside the page."""

    def source_hash(text: str) -> str:
        return "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"

    return (
        f"default-src 'none'; script-src {source_hash(script)}; style-src {source_hash(style)}; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
