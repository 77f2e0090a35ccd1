"""HTML from plain values. Every text passes through `escape`; nothing from a file becomes markup."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape as _escape

from steadyspike.disk.plain_text import plain


class Markup(str):
    """HTML that was made here and must not be escaped again."""


def escape(text: object) -> Markup:
    """Returns a text as HTML shows it; control characters, which no page needs, are spelled out."""
    if isinstance(text, Markup):
        return text
    return Markup(_escape(plain(text, kept="\n\t"), quote=True))


def tag(name: str, *children: object, **attributes: str) -> Markup:
    """Builds an element: ``tag("p", "text", class_="note")``.

    Names of tags and attributes come from the program, never from a file.
    """
    attribute_text = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(value)}"' for key, value in attributes.items()
    )
    return Markup(f"<{name}{attribute_text}>{''.join(escape(child) for child in children)}</{name}>")


def joined(parts: Iterable[object]) -> Markup:
    return Markup("".join(escape(part) for part in parts))


def table(caption: str, head: Sequence[object], rows: Iterable[Sequence[object]], **attributes: str) -> Markup:
    """A table that scrolls inside its own region; the first cell of every row names it."""
    body = joined(tag("tr", tag("th", row[0], scope="row"), *(tag("td", cell) for cell in row[1:])) for row in rows)
    columns = tag("tr", *(tag("th", name, scope="col") for name in head))
    inside = tag("table", tag("caption", caption), tag("thead", columns), tag("tbody", body), **attributes)
    return tag("div", inside, class_="scroll", tabindex="0", role="region", aria_label=caption)


def data_table(caption: str, head: Sequence[object], rows: Iterable[Sequence[object]]) -> Markup:
    """The table behind a figure, closed until the reader opens it."""
    return tag("details", tag("summary", f"Data table: {caption}"), table(caption, head, rows))


def number(value: float | None, digits: int = 2) -> str:
    """Formats a number for a table; a dash if there is none."""
    if value is None:
        return "–"
    if value and abs(value) < 10**-digits:
        return f"{value:.2g}"
    return f"{value:.{digits}f}"
