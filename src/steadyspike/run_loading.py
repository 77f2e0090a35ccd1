"""`ss.load_run`: imports the trainer only when it is called, so that ``import steadyspike`` is quick."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from steadyspike.extras import advice

if TYPE_CHECKING:
    from steadyspike.train.run.loading import LoadedRun


def load_run(folder: str | Path, data_dir: str | Path | None = None) -> LoadedRun:
    """Loads a finished run from its folder: recipe, data, and the network with the result's weights in evaluation mode.

        run = ss.load_run("runs/demo/001")
        for x, y in run.data.eval_loader("test", 256):
            logits = run.model(x)

    data_dir: replaces the folder in which the run found its data


    Your own network is imported as in training: from the working directory or PYTHONPATH, never from the run folder.
    """
    try:
        from steadyspike.train.run.loading import load_run as load
    except ModuleNotFoundError as error:
        if (text := advice(error, "ss.load_run")) is None:
            raise
        raise ImportError(text, name=error.name) from None
    return load(folder, data_dir)
