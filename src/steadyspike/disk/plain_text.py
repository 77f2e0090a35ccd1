"""`plain`: text from outside (file names, classes, recipes, files of a run) as a terminal or a page may show it."""

from __future__ import annotations


def plain(text: object, kept: str = "") -> str:
    r"""Spells out the characters of ``text`` that a terminal or a page obeys instead of showing: ``\x1b``, ``\u202e``.

    These are control characters, escape sequences and marks that change the direction of the text after them.
    kept: characters that stay, such as the newlines of a text of several lines.
    """
    return "".join(c if c.isprintable() or c in kept else c.encode("unicode_escape").decode() for c in str(text))
