"""Whether what was once asked of a trained network, and kept, is about the weights that the run has now."""

from __future__ import annotations

from typing import Any

from steadyspike.disk.checksum import file_sha256
from steadyspike.train.files.folder import RunFolder


def is_current(details: dict[str, Any] | None, folder: RunFolder) -> bool:
    """For details.json and energy.json."""
    return details is not None and folder.weights.is_file() and details.get("weights") == file_sha256(folder.weights)
