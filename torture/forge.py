"""Forged folded networks: descriptions and constants changed at random, with a digest that fits them again."""

from __future__ import annotations

import copy
import json
import random
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

STRANGE: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 3, 7, 10**9, 2**63, -(2**40), 0.5, float("nan"), 1e308, "", "input", "a\x1b[31m",
    [], [1], [0, 0], [-1], [10**9] * 3, {}, {"name": 1}, [None], "lif", "conv", "reshape", "time_mean",
)  # fmt: skip


def read_parts(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The description and the constants of a folded file."""
    from safetensors import safe_open

    with safe_open(path, "pt") as file:
        tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        return json.loads(file.metadata()["steadyspike"]), tensors


def write_forged(path: Path, content: Any, tensors: dict[str, Tensor]) -> None:
    """A file whose digest fits what is in it."""
    from safetensors.torch import save_file

    from steadyspike.deploy.file import _digest

    description = json.dumps(content)
    save_file(tensors, path, {"steadyspike": description, "digest": _digest(description, tensors)})


def _places(thing: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) of a nested description."""
    actual: list[tuple[Any, Any]] = []
    todo = [thing]
    while todo:
        item = todo.pop()
        keys = list(item) if isinstance(item, dict) else range(len(item)) if isinstance(item, list) else []
        for key in keys:
            actual.append((item, key))
            todo.append(item[key])
    return actual


def forge(
    content: dict[str, Any], tensors: dict[str, Tensor], dice: random.Random
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """A copy with one to three changes."""
    content, tensors = copy.deepcopy(content), dict(tensors)
    for _ in range(dice.randint(1, 3)):
        if dice.random() < 0.3:
            _change_constant(tensors, dice)
            continue
        places = _places(content)
        if not places:
            break
        item, key = dice.choice(places)
        kind = dice.randrange(4)
        if kind == 0:
            item[key] = copy.deepcopy(dice.choice(STRANGE))
        elif kind == 1:
            del item[key]
        elif kind == 2:
            other, name = dice.choice(places)
            if (isinstance(other, dict) and name in other) or (isinstance(other, list) and name < len(other)):
                item[key] = copy.deepcopy(other[name])
        elif isinstance(item[key], int):
            item[key] = item[key] + dice.choice((-1, 1, 100, 2**20))
    return content, tensors


def _change_constant(tensors: dict[str, Tensor], dice: random.Random) -> None:
    if not tensors:
        return
    name = dice.choice(sorted(tensors))
    t = tensors[name]
    changed: list[Tensor] = [
        t.flatten(), t[None], t.double(), t.to(torch.int32), t.flatten()[:1], t.flatten()[:0],
        t * float("nan"), 0 - t.float(),
        torch.cat([t, t]), t.bool(),
    ]  # fmt: skip
    choice = dice.randrange(len(changed) + 1)
    if choice == len(changed):
        del tensors[name]
    else:
        tensors[name] = changed[choice].contiguous()
