"""Text for people: `plain` for text from outside (file names, recipes, files of a run), errors, durations."""

from __future__ import annotations


class PlainError(Exception):
    """Base class of errors that the user can fix: their message is enough, so commands print it without a traceback."""


def plain(text: object, kept: str = "") -> str:
    r"""Spells out the characters of ``text`` that a terminal or a page would interpret: ``\x1b``, ``\u202e``.

    These are control characters, escape sequences and marks that change the direction of the text after them.

    kept: characters that stay, such as the newlines of a text of several lines
    """
    text = str(text)
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in kept else c.encode("unicode_escape").decode() for c in text)


def duration(seconds: float) -> str:
    """``"45 s"``, ``"3 min 20 s"``, ``"2 h 05 min"``."""
    if seconds < 60:
        return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"
