"""How commands write: a console that does not interpret text from outside, sparklines, times and numbers."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.status import Status
from rich.table import Table
from rich.text import Text

from steadyspike.disk.plain_text import plain
from steadyspike.report.sparkline import BLOCKS, PLAIN

STYLES = {"finished": "green", "running": "cyan", "stopped": "yellow", "killed": "yellow"}  # all others: red


class SafeConsole(Console):
    """Console that prints every text literally: ``[x]`` is not markup, ``:x:`` is not an emoji, and `plain` is applied.

    Everything that commands print goes through it. ``markup=True`` is for texts of
    the program itself
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(highlight=False, markup=False, emoji=False, **options)

    def status(self, status: RenderableType, **options: Any) -> Status:
        # otherwise markup would always be interpreted
        return super().status(Text(status) if isinstance(status, str) else status, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(plain(text, kept="\n"), **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=plain(segment.text, kept="\n"))


def marks(console: Console) -> str:
    """Returns characters for sparklines: blocks, or ASCII if the output cannot show them."""
    try:
        BLOCKS.encode(console.encoding)
    except (UnicodeEncodeError, LookupError):
        return PLAIN
    return BLOCKS


def wide_enough(console: Console) -> Console:
    """Returns the terminal; if the output goes to a file or another program, with a width at which nothing is cut."""
    return console if console.is_terminal else SafeConsole(width=200, file=console.file)


def when(moment: float, now: float | None = None) -> str:
    """Returns ``"10:19"`` for today, ``"11-16 10:19"`` for this year, otherwise ``"2025-11-16"``."""
    then, today = time.localtime(moment), time.localtime(now)
    if then[:3] == today[:3]:
        return time.strftime("%H:%M", then)
    return time.strftime("%m-%d %H:%M" if then[0] == today[0] else "%Y-%m-%d", then)


def number(value: float | None, digits: int = 3) -> str:
    """Formats a number with about ``digits`` digits; nothing for None."""
    if value is None:
        return ""
    return f"{value:.{digits}g}" if value and not 1e-3 <= abs(value) < 1e4 else f"{value:.{digits}f}"[: digits + 3]


def bare_table(*columns: str, right: tuple[str, ...] = (), fold: tuple[str, ...] = ()) -> Table:
    """Makes a table without lines; columns in ``right`` are right-aligned, and only those in ``fold`` may break."""
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for name in columns:
        table.add_column(
            name,
            justify="right" if name in right else "left",
            no_wrap=name not in fold,
            overflow="fold" if name in fold else "ellipsis",
        )
    return table
