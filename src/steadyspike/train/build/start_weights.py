"""Fine-tuning: a new run starts with the weights of a trained network."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from steadyspike.disk.checksum import file_sha256
from steadyspike.train.files.folder import RunError, RunFolder
from steadyspike.train.files.packaged import run_folder
from steadyspike.train.files.weights import read_weights
from steadyspike.train.recipe import Recipe, RecipeError


def start_from(model: nn.Module, source: str) -> str:
    """Copies the weights of a run or a network of the zoo into ``model``; returns a sentence about what was copied.

    Tensors of the same name and shape are copied, with statistics of norms and MP-Init; the others, such as a last
    layer for other classes, keep their random start. RecipeError if nothing fits.
    """
    try:
        state, _ = read_weights(RunFolder(run_folder(source)).weights)
    except RunError as error:
        raise RecipeError(f"train.start = {source!r}: {error}") from None
    own = model.state_dict()
    fits = {name: t for name, t in state.items() if name in own and own[name].shape == t.shape}
    if not any(own[name].ndim > 1 for name in fits):
        raise RecipeError(f"train.start = {source!r} is another network: none of its layers fits this one")
    with torch.no_grad():
        model.load_state_dict({**own, **fits})
    new = [name for name in own if name not in fits]
    added = f"; new: {', '.join(new[:4])}" if new else ""
    return f"starts with {len(fits)} of {len(own)} tensors of {source}{added}"


def start_record(recipe: Recipe) -> dict[str, Any]:
    """The entry of run.json about the weights that a run started with."""
    if not recipe.train.start:
        return {}
    return {"start_sha256": file_sha256(RunFolder(run_folder(recipe.train.start)).weights)}
