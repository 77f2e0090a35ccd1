"""Whether a run has ended and all its files are undamaged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from steadyspike.train.files.folder import RunError, RunFolder
from steadyspike.train.files.tables import Extent, extent_problem
from steadyspike.train.files.weights import check_own, read_weights


def intact_result(folder: RunFolder) -> dict[str, Any] | None:
    """result.json of a run that has ended, if nothing is left to do.

    None for a run that was interrupted, and if run.json, result.json, the weights or a table are missing, damaged or
    from another run: continuing the run writes them again, or reports what is lost.
    """
    try:
        folder.read_json("run.json")
        result = folder.read_json("result.json")
        if result["status"] != "interrupted":
            read_weights(folder.weights)
            check_own(folder, result)
            if all(_same_table(folder.root / f"{name}.csv", extent) for name, extent in result["tables"].items()):
                return result
    except RunError:
        pass
    return None


def _same_table(path: Path, extent: Extent) -> bool:
    """Whether a CSV of a run that has ended is what the run wrote, with nothing behind it."""
    return extent_problem(path, extent) is None and path.stat().st_size == extent["length"]
