"""The documentation site builds without a warning, its links hold, and its pages look right in a real browser."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.markdown import DOCS, ROOT
from tests.report.browser import Browser, program

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site without the outputs of the tutorials, which have a test of their own."""
    if importlib.util.find_spec("sphinx") is None or importlib.util.find_spec("myst_nb") is None:
        pytest.skip("sphinx is not installed; `make docs` installs it")
    folder = tmp_path_factory.mktemp("site")
    # Notebooks that were not run have no language; their code is then shown without colours.
    unexecuted = ["-D", "nb_execution_mode=off", "-D", "suppress_warnings=myst-nb.lexer"]
    options = ["-q", "-W", "-n", "--keep-going", *unexecuted, "-d", str(folder / "doctrees")]
    command = [sys.executable, "-m", "sphinx", *options, str(DOCS), str(folder / "html")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder / "html"


def test_links_anchors_and_pictures(site: Path) -> None:
    command = [sys.executable, str(ROOT / "tools" / "check_site.py"), str(site)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@pytest.mark.skipif(program() is None, reason="Chromium is not installed")
def test_pages_in_a_browser(site: Path, tmp_path: Path) -> None:
    browser = Browser(tmp_path)
    try:
        for page in sorted(site.rglob("*.html")):
            for width, theme in ((1300, "light"), (400, "dark")):
                browser.screen(width, theme=theme)
                browser.open(page)
                name = f"{page.relative_to(site)} at {width} pixels"
                assert browser.complaints() == [], name
                assert [url for url in browser.requests() if not url.startswith("file:")] == [], name
                too_wide = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
                assert browser.run(too_wide) <= 0, f"{name} scrolls sideways"
                broken = "[...document.images].filter(i => !(i.complete && i.naturalWidth)).map(i => i.src)"
                assert browser.run(broken) == [], name
    finally:
        browser.close()


@pytest.mark.skipif(program() is None, reason="Chromium is not installed")
def test_search_works_from_disk(site: Path, tmp_path: Path) -> None:
    browser = Browser(tmp_path)
    try:
        browser.screen(1300)
        browser.call("Page.navigate", url=(site / "search.html").as_uri() + "?q=raster")
        actual = "new Promise(r => setTimeout(() => r(document.querySelectorAll('#search-results a').length), 1500))"
        assert browser.run(actual) > 0
    finally:
        browser.close()
