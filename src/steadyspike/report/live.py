"""Writes report.html of a run while it trains, and when it has ended."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from steadyspike.disk.checksum import file_sha256
from steadyspike.report.run_view import read_run
from steadyspike.report.write_page import write_report
from steadyspike.train.files.folder import RunFolder

PAGE = "report.html"
_TABLES = ("metrics.csv", "health.csv")


class LiveReport:
    """Writes a report of the files that the run in ``root`` has written so far, whenever it is called."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._shown = self._lengths()

    def __call__(self) -> None:
        self._shown = self._lengths()
        write_report([read_run(self._root)], self._root / PAGE)

    def news(self) -> bool:
        """Returns whether an epoch has ended or a health check has found something since the last page."""
        return self._lengths() != self._shown

    def _lengths(self) -> list[int]:
        paths = (self._root / name for name in _TABLES)
        return [path.stat().st_size if path.exists() else 0 for path in paths]


def is_current(details: dict[str, Any] | None, folder: RunFolder) -> bool:
    """The keys of details.json and energy.json."""
    return details is not None and folder.weights.is_file() and details.get("weights") == file_sha256(folder.weights)
