"""Checks a built documentation site: links, anchors and pictures exist, and nothing is loaded from the network.

python tools/check_site.py docs/_build/site
"""

from __future__ import annotations

import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADED = {"img": "src", "script": "src", "link": "href", "iframe": "src", "source": "src"}


class Page(HTMLParser):
    """The anchors of a page, its links, and what it loads."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.text_alternatives: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.anchors |= {values[key] or "" for key in ("id", "name") if key in values}
        if tag == "a" and values.get("href"):
            self.links.append(values["href"] or "")
        if tag in LOADED and values.get(LOADED[tag]) and values.get("rel") != "canonical":
            self.loaded.append(values[LOADED[tag]] or "")
        if tag == "img" and not values.get("alt"):
            self.text_alternatives.append(values.get("src") or "")


def problems(site: Path) -> list[str]:
    """Returns a sentence for everything that is wrong with the pages below ``site``."""
    pages = {path.resolve(): Page(path) for path in site.rglob("*.html")}
    sentences = []
    for page in pages.values():
        name = page.path.relative_to(site)
        for address in page.loaded:
            if urlsplit(address).scheme not in ("", "data") or address.startswith("//"):
                sentences.append(f"{name} loads {address} from the network")
            elif not address.startswith("data:") and not _target(page.path, address).exists():
                sentences.append(f"{name} loads {address}, which does not exist")
        for address in page.links:
            parts = urlsplit(address)
            if parts.scheme or address.startswith("//"):
                continue
            target = _target(page.path, address)
            if not target.is_file():
                sentences.append(f"{name} links to {address}, which does not exist")
            elif parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].anchors:
                sentences.append(f"{name} links to {address}, which has no such anchor")
        sentences += [f"{name} shows {picture} without a text alternative" for picture in page.text_alternatives]
        if re.search(r'class="(system-message|problematic)', page.path.read_text(encoding="utf-8")):
            sentences.append(f"{name} shows an error of the builder")
    return sentences


def _target(page: Path, address: str) -> Path:
    path = unquote(urlsplit(address).path)
    return (page.parent / path).resolve() if path else page.resolve()


def main(site: Path) -> int:
    pages = list(site.rglob("*.html"))
    if not pages:
        print(f"there are no pages in {site}; run `make docs`", file=sys.stderr)
        return 1
    sentences = problems(site)
    print(
        "\n".join(sentences) if sentences else f"{len(pages)} pages in {site}: every link, anchor and picture is there"
    )
    return 1 if sentences else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
