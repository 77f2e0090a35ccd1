"""`ss.load_run`: imports the trainer when it is called, so that ``import steadyspike`` stays light."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from steadyspike.extras import advice

if TYPE_CHECKING:
    from steadyspike.train.run.loading import LoadedRun


def load_run(folder: str | Path, data_dir: str | Path | None = None) -> LoadedRun:
    """A finished run by its folder: its network with the weights of the result, in evaluation mode, recipe and data.

        run = ss.load_run("runs/demo/001")
        for x, y in run.data.eval_loader("test", 256):
            logits = run.model(x)

    data_dir: in place of the folder where the run found its data. A network of your own is imported as in training:
    from the working directory or PYTHONPATH, never from the run folder.
    """
    try:
        from steadyspike.train.run.loading import load_run as load
    except ModuleNotFoundError as error:
        if (text := advice(error, "ss.load_run")) is None:
            raise
        raise ImportError(text, name=error.name) from None
    return load(folder, data_dir)
