"""The end of a run: final weights, their test accuracy, and result.json."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from steadyspike.disk.checksum import file_sha256
from steadyspike.train.files.checkpoint import read_best, read_checkpoint
from steadyspike.train.files.environment import environment, most_memory
from steadyspike.train.files.folder import RunFolder
from steadyspike.train.files.weights import NOTED, NOTED_RECIPE, load_weights, save_weights, start_record
from steadyspike.train.recipe import Recipe
from steadyspike.train.recipe.identity import deciding
from steadyspike.train.run.evaluation import evaluate_part
from steadyspike.train.state.session import EndOfRun, Session


def interrupted(recipe: Recipe, folder: RunFolder, number: int, where: str, rank: int = 0) -> dict[str, Any]:
    """Returns the result of a run that a signal stopped; its folder can be resumed from any point."""
    result = {"status": "interrupted", "signal": int(number), "where": where}
    if rank == 0:
        if not (folder.root / "recipe.toml").exists():
            folder.write_recipe(recipe)
        folder.write_json("result.json", result)
    return result


def conclude(session: Session, ended: EndOfRun | None, seconds: float) -> dict[str, Any]:
    """Writes weights, their test accuracy and result.json."""
    folder, recipe = session.folder, session.recipe
    result: dict[str, Any] = {"status": ended.status if ended else "finished", "seconds": round(seconds, 1)}
    if ended is not None:
        result |= {"message": ended.message, "layer": ended.layer}
    source = _final_weights(session, ended, result)
    load_weights(folder.weights, session.task.model)
    scores = evaluate_part(session.task, session.bundle, "test")
    result |= {
        "weights": source,
        NOTED: file_sha256(folder.weights),
        NOTED_RECIPE: file_sha256(folder.root / "recipe.toml"),
        "selection": session.bundle.split.record()["selection_text"],
        "split": session.bundle.split.fingerprint,
        "test": scores.record(),
        "best": _best(session),
        "seed": recipe.train.seed,
        "tables": session.extents,
        "memory": most_memory(),
    }
    if recipe.paper is not None:
        result["paper"] = recipe.paper.model_dump(exclude_none=True)
    folder.write_json("result.json", result)
    return result


def _best(session: Session) -> dict[str, Any] | None:
    best = session.best
    return {"epoch": best.epoch, session.task.selected_by: best.accuracy} if best.epoch else None


def _final_weights(session: Session, ended: EndOfRun | None, result: dict[str, Any]) -> str:
    """Writes weights.safetensors and returns which weights they are."""
    folder, whole = session.folder, None  # the epoch at whose end they were taken
    if ended is not None and ended.present:
        state, source = session.task.model.state_dict(), "at the end"
    else:
        best = session.best.epoch > 0
        checkpoint = read_best(folder, session.best.epoch) if best else read_checkpoint(folder.last)
        state, epoch = checkpoint["average"] or checkpoint["state_dict"], checkpoint["epoch"]
        whole = epoch if checkpoint["batch"] == 0 else None
        source = f"best epoch ({epoch})" if best else f"last checkpoint (epoch {epoch})"
    about = {
        "recipe": deciding(session.recipe, exclude_none=True),
        "split": session.bundle.split.record(),
        "epoch": whole,
    }
    save_weights(folder.weights, state, about)
    return source


def write_about(session: Session, data_dir: Path | None) -> None:
    """Writes run.json, unless it exists and the run continues; a new data folder is always stored."""
    folder, data_folder = session.folder, None if data_dir is None else str(data_dir.expanduser().resolve())
    if session.resumed is not None and folder.intact("run.json"):
        about = folder.read_json("run.json")
        if data_folder is None or about.get("data_dir") == data_folder:
            return
        folder.write_json("run.json", {**about, "data_dir": data_folder})
        return
    folder.write_json("run.json", {**about_run(session), "data_dir": data_folder})


def about_run(session: Session) -> dict[str, Any]:
    """Returns the environment and the data of a run."""
    return {
        "environment": environment(),
        "processes": session.processes.count,
        "seed": session.recipe.train.seed,
        "data": session.bundle.describe(),
        "parameters": sum(p.numel() for p in session.task.model.parameters()),
        **start_record(session.recipe),
    }
