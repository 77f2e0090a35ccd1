"""Builds the page of a network: one HTML file that sends no requests."""

from __future__ import annotations

import time
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from steadyspike.deploy.energy import TABLES
from steadyspike.deploy.network import FoldedNetwork
from steadyspike.deploy.standalone import lower
from steadyspike.report.markup import Markup
from steadyspike.report.network_page.program_data import constant, program_data
from steadyspike.report.write_page import embedded, filled, page_file, policy, wrapped
from steadyspike.train.files.atomic import write_atomically

SCRIPTS = ("engine.js", "input.js", "views.js", "start_page.js")
SHARED = ("elements.js",)


def write_network_page(
    network: FoldedNetwork,
    path: Path,
    facts: dict[str, Any],
    samples: Tensor | None = None,
    labels: list[int] = [],  # noqa: B006
) -> Path:
    """Writes the page of a folded network; the user can choose from ``samples`` [B, ...] or [T, B, ...].

    The network runs with the integers of `IntegerNetwork`. If it has no integer form, `CannotFold` is raised.
    """
    content = render(network, facts, samples, labels).encode()
    write_atomically(path, lambda file: file.write(content))
    return path


def render(network: FoldedNetwork, facts: dict[str, Any], samples: Tensor | None, labels: list[int]) -> str:
    """Returns the whole page."""
    program = lower(network, str(facts.get("model") or "network"), facts=facts)
    classes = [str(name) for name in facts.get("classes") or []]
    if len(classes) != program.output.size:
        classes = [str(i) for i in range(program.output.size)]
    data = {
        "program": program_data(program),
        "facts": {key: facts.get(key) for key in ("mean", "std", "frames", "size", "channels")},
        "classes": classes,
        "samples": [] if samples is None else _samples(samples, program.takes_frames),
        "labels": [classes[label] for label in labels],
        "energy": list(TABLES["45nm-fp32"]),
    }
    style = page_file("style.css") + _own_file("network.css")
    script = wrapped([*(page_file(name) for name in SHARED), *(_own_file(name) for name in SCRIPTS)])
    model, data_name = str(facts.get("model") or "A spiking network"), str(facts.get("data") or "")
    title = f"{model} on {data_name}" if data_name else model
    return filled(
        _own_file("page.html"),
        {
            "policy": policy(style, script),
            "title": f"{title} · SteadySpike",
            "heading": title,
            "made": f"Made on {time.strftime('%Y-%m-%d %H:%M %Z')} by SteadySpike {version('steadyspike')}.",
            "style": Markup(style),
            "script": Markup(script),
            "data": Markup(embedded(data)),
        },
    )


def _samples(samples: Tensor, takes_frames: bool) -> list[dict[str, Any]]:
    first = samples.transpose(0, 1) if takes_frames else samples
    return [table for one in first if (table := constant(one.double().numpy().astype(np.float64))) is not None]


def _own_file(name: str) -> str:
    return (files("steadyspike") / "report" / "network_page" / "page" / name).read_text(encoding="utf-8")
