"""The end of a run: final weights, their test accuracy, and result.json."""

from __future__ import annotations

from typing import Any

from steadyspike.train.files.atomic import CheckpointError
from steadyspike.train.files.checkpoint import read_checkpoint
from steadyspike.train.files.environment import environment
from steadyspike.train.files.folder import RunFolder
from steadyspike.train.files.weights import load_weights, save_weights
from steadyspike.train.recipe import Recipe
from steadyspike.train.run.evaluation import evaluate_part
from steadyspike.train.session.session import EndOfRun, Session


def interrupted(recipe: Recipe, folder: RunFolder, number: int, where: str, rank: int = 0) -> dict[str, Any]:
    """The result of a run that a signal stopped; its folder can be resumed however far it came."""
    result = {"status": "interrupted", "signal": int(number), "where": where}
    if rank == 0:
        if not (folder.root / "recipe.toml").exists():
            folder.write_recipe(recipe)
        folder.write_json("result.json", result)
    return result


def conclude(session: Session, ended: EndOfRun | None, seconds: float) -> dict[str, Any]:
    """Weights, their test accuracy and result.json."""
    folder, recipe = session.folder, session.recipe
    result: dict[str, Any] = {"status": ended.status if ended else "finished", "seconds": round(seconds, 1)}
    if ended is not None:
        result |= {"message": ended.message, "layer": ended.layer}
    source = _final_weights(session, ended, result)
    load_weights(folder.weights, session.task.model)
    scores = evaluate_part(session.task, session.bundle, "test")
    result |= {
        "weights": source,
        "selection": session.bundle.split.record()["selection_text"],
        "split": session.bundle.split.fingerprint,
        "test": scores.record(),
        "best": {"epoch": session.best.epoch, "accuracy": session.best.accuracy} if session.best.epoch else None,
        "seed": recipe.train.seed,
    }
    if recipe.paper is not None:
        result["paper"] = recipe.paper.model_dump(exclude_none=True)
    folder.write_json("result.json", result)
    return result


def _final_weights(session: Session, ended: EndOfRun | None, result: dict[str, Any]) -> str:
    """Writes weights.safetensors and says which weights they are."""
    folder, whole = session.folder, None  # the epoch whose end they are of
    if ended is not None and ended.present:
        state, source = session.task.model.state_dict(), "at the end"
    else:
        best = session.best.epoch > 0
        checkpoint = _read_best(session) if best else read_checkpoint(folder.last)
        state, epoch = checkpoint["average"] or checkpoint["state_dict"], checkpoint["epoch"]
        whole = epoch if checkpoint["batch"] == 0 else None
        source = f"best epoch ({epoch})" if best else f"last checkpoint (epoch {epoch})"
    about = {
        "recipe": session.recipe.model_dump(exclude_none=True, exclude={"paper", "measured"}),
        "split": session.bundle.split.record(),
        "epoch": whole,
    }
    save_weights(folder.weights, state, about)
    return source


def _read_best(session: Session) -> dict[str, Any]:
    """The checkpoint of the best epoch; without it there is no result, since other weights would pass for it."""
    path, epoch = session.folder.best, session.best.epoch
    try:
        if path.exists():
            return read_checkpoint(path)
        problem = f"{path} is missing"
    except CheckpointError as error:
        problem = str(error)
    raise CheckpointError(
        f"{problem}: the best epoch ({epoch}) cannot be tested; restore the file and --resume, or train again elsewhere"
    )


def about_run(session: Session, processes: int) -> dict[str, Any]:
    return {
        "environment": environment(),
        "processes": processes,
        "seed": session.recipe.train.seed,
        "data": session.bundle.describe(),
        "parameters": sum(p.numel() for p in session.task.model.parameters()),
    }
