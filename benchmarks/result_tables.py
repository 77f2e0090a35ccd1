"""Results as tables: for people, for docs/benchmarks.md, and against the goals."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from benchmarks.cases import Case, goals
from benchmarks.contenders import OURS

MARKS = ("<!-- benchmark tables: written by benchmarks/run.py -->", "<!-- end of benchmark tables -->")
HEADING = "### "  # of a kind of machine
# results[str(case)][contender][metric]: seconds, bytes, or an error
Results = dict[str, dict[str, dict[str, Any]]]


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) else None


def _cell(value: Any, unit: str) -> str:
    number = _number(value)
    if number is None:
        return "-" if value is None else "failed"
    if unit == "bytes":
        return f"{number / 2**20:.0f} MiB"
    return f"{number:.2f} s" if number >= 1 else f"{number * 1e3:.3g} ms"


def _ratio(rows: dict[str, dict[str, Any]], name: str, metric: str) -> str:
    theirs, ours = _number(rows[name].get(metric)), _number(rows.get(OURS, {}).get(metric))
    return f"{theirs / ours:.2f}" if theirs and ours else "-"


def case_table(case: Case | str, rows: dict[str, dict[str, Any]]) -> str:
    """Returns times, memory, and each contender's multiple of our plain layer."""
    lines = [
        f"**{case}**\n",
        "| | forward | x ours | forward + backward | x ours | peak memory | x ours |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, row in rows.items():
        cells = []
        for metric, unit in (("forward", "s"), ("train", "s"), ("peak", "bytes")):
            cells += [_cell(row.get(metric), unit), _ratio(rows, name, metric)]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def goal_table(cases: list[Case], results: Results) -> str:
    """Returns every goal with the measured ratio, and whether it was reached."""
    lines = ["| case | figure | goal | measured | |", "|---|---|---|---|---|"]
    for case in cases:
        rows = results[str(case)]
        for goal in goals(case):
            theirs = _number(rows.get(goal.other, {}).get(goal.metric))
            ours = _number(rows.get(goal.ours, {}).get(goal.metric))
            if theirs is None or ours is None:
                continue
            ratio = theirs / ours
            what = {"train": "forward + backward", "forward": "evaluation", "peak": "peak memory"}[goal.metric]
            lines.append(
                f"| {case} | {goal.other} / {goal.ours}, {what} | >= {goal.least:.2f} | {ratio:.2f} "
                f"| {'reached' if ratio >= goal.least else 'missed'} |"
            )
    return "\n".join(lines)


def markdown(cases: list[Case], results: Results, machine: dict[str, Any]) -> str:
    libraries = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    head = (
        f"{machine['threads']} of {machine['cores']} cores; {libraries}; commit {machine['commit']}, "
        f"{machine['time'][:10]}; load {machine['load']} at the start."
    )
    tables = "\n\n".join(case_table(case, results[str(case)]) for case in cases)
    return "\n\n".join([head, goal_table(cases, results), folded("Times and memory of every case", tables)])


def why_not_writable(path: Path, marks: tuple[str, str] = MARKS) -> str | None:
    """Returns why the tables cannot be written into ``path``; None if they can."""
    text = path.read_text() if path.is_file() else None
    if text is None:
        return f"there is no file {path}"
    if any(mark not in text for mark in marks):
        return f"the tables cannot be written into {path}; it needs the lines {marks[0]!r} and {marks[1]!r}"
    return None


def kind(machine: dict[str, Any]) -> str:
    """Returns the kind of a machine: its CPU model and the instruction set that the kernels use on it."""
    return f"{machine['cpu']}, {machine['instruction_set']}"


def folded(title: str, text: str) -> str:
    """Returns ``text`` as a part of a page that is closed until the reader opens it."""
    return f"<details>\n<summary>{title}</summary>\n\n{text.strip()}\n\n</details>"


def put_between_marks(path: Path, kind: str, text: str, marks: tuple[str, str] = MARKS) -> None:
    """Writes ``text`` between the two marks in ``path``, as the first section, under the name of its kind of machine.

    It replaces an earlier section of that kind. Sections of other kinds stay, closed.
    """
    before, rest = path.read_text().split(marks[0], 1)
    inside, after = rest.split(marks[1], 1)
    sections = {kind: text.strip()}
    for other, body in re.findall(r"<!-- begin (.*?) -->\n(.*?)<!-- end \1 -->", inside, re.DOTALL):
        sections.setdefault(other, _without_frame(body, other))
    parts = []
    for name, body in sections.items():
        shown = f"{HEADING}{name}\n\n{body}" if name == kind else folded(name, body)
        parts.append(f"<!-- begin {name} -->\n\n{shown}\n\n<!-- end {name} -->")
    path.write_text("\n\n".join([before + marks[0], *parts, marks[1] + after]))


def _without_frame(section: str, kind: str) -> str:
    section = section.strip()
    opening = f"<details>\n<summary>{kind}</summary>"
    if section.startswith(opening):
        return section.removeprefix(opening).removesuffix("</details>").strip()
    return section.removeprefix(f"{HEADING}{kind}").strip()
