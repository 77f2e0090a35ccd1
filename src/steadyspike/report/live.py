"""report.html of a run while it trains, and when it has ended."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from steadyspike.report.run_view import read_run
from steadyspike.report.write_page import write_report

PAGE = "report.html"


def live_report(root: Path) -> Callable[[], None]:
    """Writes the report of what the run has written so far, whenever it is called."""

    def write() -> None:
        write_report([read_run(root)], root / PAGE)

    return write
