"""The model card of a network: purpose, training, scores and limits. Markdown."""

from __future__ import annotations

import csv
import re
from pathlib import Path
from typing import Any

from steadyspike.train.files.folder import RunFolder
from steadyspike.train.recipe.toml import dumps
from steadyspike.zoo.description import Description, Numbers, read_description

MOST_NAMES = 100


def plain(text: str) -> str:
    """Returns text from an unknown source in one line of Markdown: no markup, no line break, no control character."""
    one_line = re.sub(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]+", " ", text)
    return re.sub(r"([\\`*_\[\]|#])", r"\\\1", one_line.replace("<", "&lt;").replace(">", "&gt;"))


def card_of_run(folder: Path, name: str, about: str = "") -> str:
    """Returns the card of a folder that has a description and the record of its run."""
    description, run = read_description(folder), RunFolder(folder)
    recipe, facts, result = run.read_recipe(), run.read_json("run.json"), run.read_json("result.json")
    parts = [f"# {plain(name)}", plain(about or recipe.about.removeprefix("zoo: ")), *_use(name)]
    parts += ["## Scores", _scores(result["test"])]
    if description.numbers is not None:
        parts.append(_numbers(description.numbers, description.rounding, facts))
    parts += ["## Training", _training(facts, result, recipe.schedule.epochs, recipe.train.start), _curve(folder)]
    parts += ["## Recipe", f"```toml\n{dumps(recipe.model_dump(exclude_defaults=True)).strip()}\n```"]
    parts += ["## Input and classes", _input(description), "## Limits", _limits(facts, result)]
    return "\n\n".join(part for part in parts if part) + "\n"


def card_of_model(description: Description, name: str, about: str = "") -> str:
    """Returns the card of a network that was saved without a run; it has nothing about training."""
    built = {key: table for key, table in description.recipe.items() if key in ("model", "neuron", "norm")}
    steps = {"timesteps": description.recipe["data"]["timesteps"]}
    tables = f"```toml\n{dumps({**built, 'data': steps}).strip()}\n```"
    parts = [f"# {plain(name)}", plain(about), *_use(name), "## Network", tables]
    parts += ["## Input and classes", _input(description)]
    parts += ["## Limits", "It was not recorded how the network was trained and how accurate it is."]
    return "\n\n".join(part for part in parts if part) + "\n"


def _use(name: str) -> list[str]:
    quoted = repr(name) if name.isprintable() else "FOLDER"
    return [f"```python\nimport steadyspike as ss\n\nnet = ss.load({quoted})\nlogits = net.model(x)\n```"]


def _scores(test: dict[str, Any]) -> str:
    if "accuracy" in test:
        head = "| time steps | " + " | ".join(str(step + 1) for step in range(len(test["accuracy"]))) + " |"
        rule = "|---" * (len(test["accuracy"]) + 1) + "|"
        row = "| test accuracy (%) | " + " | ".join(f"{value:.2f}" for value in test["accuracy"]) + " |"
        return f"{head}\n{rule}\n{row}\n\n{test['samples']} test samples."
    return (
        f"| mAP@.5 | mAP@.5:.95 |\n|---|---|\n| {test['AP50']:.4f} | {test['AP']:.4f} |\n\n"
        f"{test['samples']} test images."
    )


def _numbers(numbers: Numbers, rounding: str, facts: dict[str, Any]) -> str:
    joule = "-" if numbers.energy_mj is None else f"{numbers.energy_mj:.4f} mJ"
    note = f" ({plain(numbers.energy_note)})" if numbers.energy_note else ""
    energy = f"Energy: operations of the folded network at 45 nm fp32, without memory{note}."
    if numbers.energy_mj is None:
        energy = f"The energy was not measured: {plain(numbers.energy_note)}."
    how = {
        "float16": "Weights of convolutions and linear layers are rounded to float16",
        "none": "Weights are not rounded.",
    }.get(rounding, "Weights of the largest layers are rounded to float16, so that the file has at most 4 MB")
    how += "" if rounding == "none" else f"; the score before was {numbers.before:.4g}."
    return (
        f"| parameters | firing rate | energy per sample | time per sample |\n|---|---|---|---|\n"
        f"| {facts.get('parameters', 0):,} | {numbers.firing_rate:.2%} | {joule} | {numbers.ms:.1f} ms |\n\n"
        f"{energy} Time: one sample, one thread, {plain(numbers.hardware)}. {how}"
    )


def _training(facts: dict[str, Any], result: dict[str, Any], epochs: int, start: str) -> str:
    where, split = facts["environment"], facts["data"]["split"]
    hardware = ", ".join(where["gpus"]) or f"{where['cpu']}, {where['threads']} of {where['cores']} cores"
    rows = {
        "data": f"{facts['data'].get('name', '')}, split {split['name']} ({split['fingerprint']})",
        "chosen": result.get("selection", ""),
        **({"starts with": f"the weights of {start} (sha256 {facts.get('start_sha256', '')})"} if start else {}),
        "epochs": str(epochs),
        "seed": str(result["seed"]),
        "time": f"{result.get('seconds', 0) / 60:.0f} min of wall-clock time since the last start",
        "hardware": hardware,
        "commit": str(where["commit"]),
    }
    return "| | |\n|---|---|\n" + "\n".join(f"| {key} | {plain(value)} |" for key, value in rows.items())


def _curve(folder: Path) -> str:
    """Returns at most twelve rows of metrics.csv."""
    try:
        with (folder / "metrics.csv").open(newline="") as file:
            rows = list(csv.DictReader(file))
    except OSError:
        return ""
    columns = rows[0] if rows else {}
    chosen = [c for c in columns if c == "epoch" or "loss" in c or "accuracy" in c or c.endswith("AP50")]
    shown = [rows[i] for i in sorted({round(k * (len(rows) - 1) / 11) for k in range(12)})] if rows else []
    lines = ["| " + " | ".join(plain(column) for column in chosen) + " |", "|---" * len(chosen) + "|"]
    lines += ["| " + " | ".join(_number(row[column]) for column in chosen) + " |" for row in shown]
    return "\n".join(lines) if shown else ""


def _number(text: str | None) -> str:
    try:
        return f"{float(text or ''):.4g}"
    except ValueError:
        return ""


def _input(description: Description) -> str:
    given = description.input
    kind = "still images" if given.timesteps is None else f"clips of {given.timesteps} frames of events"
    lines = [f"{kind}, {given.channels} x {given.size[0]} x {given.size[1]}"]
    if given.mean is not None and given.std is not None:
        lines.append(f"pixels / 255, less {given.mean}, divided by {given.std}")
    names = [plain(name) for name in description.classes[:MOST_NAMES]]
    more = f" and {len(description.classes) - MOST_NAMES} more" if len(description.classes) > MOST_NAMES else ""
    lines.append(f"{description.num_classes} classes{': ' if names else ''}{', '.join(names)}{more}")
    return "\n".join(f"- {line}" for line in lines)


def _limits(facts: dict[str, Any], result: dict[str, Any]) -> str:
    kept = facts["data"]["split"].get("selection")
    chosen = "The epoch was chosen on the test part, so that the score is optimistic. " if kept == "test" else ""
    return (
        f"{chosen}One seed. The network was sized and trained for a CPU, and tried on the test part of one data set "
        f"only ({result['test']['samples']} samples): on other data, expect less."
    )
