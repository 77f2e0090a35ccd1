"""Checks that this machine has the device and the precision that a recipe needs."""

from __future__ import annotations

import subprocess
import sys
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any

import torch

from steadyspike.train.recipe import Recipe, RecipeError

_HALF = {"bf16": torch.bfloat16, "fp16": torch.float16}
_PROBE = """
import torch
with torch.autocast("cpu", torch.bfloat16):
    torch.nn.Linear(64, 10)(torch.randn(64, 64)).float().sum().backward()
    torch.nn.Conv2d(8, 8, 3)(torch.randn(8, 8, 8, 8)).float().sum().backward()
"""


@cache
def bf16_problem() -> str | None:
    """Returns None if a bfloat16 layer runs on this CPU; otherwise a message with what to do.

    It is tried in a separate process, because some virtual machines report AMX and then kill the process that uses it.
    """
    done = subprocess.run([sys.executable, "-c", _PROBE], capture_output=True)
    if done.returncode == 0:
        return None
    return (
        "torch's bfloat16 layers do not run on this CPU (a trial process ended with code "
        f"{done.returncode}); use 'fp32', or set ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 in the environment"
    )


def device_of(recipe: Recipe, number: int = 0) -> torch.device:
    """Returns the device on which process ``number`` of this machine trains."""
    name = accelerator_of(recipe)
    return torch.device("cuda", number) if name == "gpu" else torch.device(name)


def accelerator_of(recipe: Recipe) -> str:
    """Returns "gpu", "mps" or "cpu"; an explicit choice that is not possible on this machine is an error."""
    asked = recipe.train.accelerator
    if asked == "gpu" and not torch.cuda.is_available():
        raise RecipeError("train.accelerator = 'gpu', but torch sees no GPU here")
    if asked == "mps":
        _check_mps(recipe)
        return asked
    chosen = "gpu" if asked != "cpu" and torch.cuda.is_available() else "cpu"
    if chosen == "cpu" and recipe.train.precision == "fp16":
        raise RecipeError("train.precision = 'fp16' needs a GPU; on the CPU use 'fp32' or 'bf16'")
    if chosen == "cpu" and recipe.train.precision == "bf16" and (problem := bf16_problem()) is not None:
        raise RecipeError(f"train.precision = 'bf16': {problem}")
    if chosen == "gpu" and recipe.train.devices > torch.cuda.device_count():
        raise RecipeError(f"train.devices = {recipe.train.devices}, but there are {torch.cuda.device_count()} GPUs")
    return chosen


def _check_mps(recipe: Recipe) -> None:
    for key, value, usable in (("precision", recipe.train.precision, "fp32"), ("devices", recipe.train.devices, 1)):
        if value != usable:
            raise RecipeError(f"train.{key} = {value!r}: with train.accelerator = 'mps' it must be {usable!r}")
    if recipe.neuron.backend not in (None, "auto", "reference"):
        raise RecipeError(f"neuron.backend = {recipe.neuron.backend!r} does not run on mps; use 'reference'")
    if not torch.backends.mps.is_available():
        raise RecipeError("train.accelerator = 'mps', but torch sees no Apple GPU here; use 'auto' or 'cpu'")


def autocast(device: torch.device, precision: str) -> AbstractContextManager[Any]:
    """Sets mixed precision, if the recipe requests it; neurons always compute in fp32."""
    half = _HALF.get(precision)
    return nullcontext() if half is None else torch.autocast(device.type, dtype=half)
