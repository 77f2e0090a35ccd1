"""report.html of a run while it trains, and when it has ended."""

from __future__ import annotations

from pathlib import Path

from steadyspike.report.run_view import read_run
from steadyspike.report.write_page import write_report

PAGE = "report.html"
_TABLES = ("metrics.csv", "health.csv")


class LiveReport:
    """Writes the report of what the run in ``root`` has written so far, whenever it is called."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._shown = self._lengths()

    def __call__(self) -> None:
        self._shown = self._lengths()
        write_report([read_run(self._root)], self._root / PAGE)

    def news(self) -> bool:
        """Whether an epoch has ended, or something was found, since the last page."""
        return self._lengths() != self._shown

    def _lengths(self) -> list[int]:
        paths = (self._root / name for name in _TABLES)
        return [path.stat().st_size if path.exists() else 0 for path in paths]
