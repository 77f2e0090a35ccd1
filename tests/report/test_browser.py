"""The report in a real headless Chromium: no errors, no network, every control works, both themes, two widths."""

import pytest

from steadyspike.report.run_view import read_run, read_runs
from steadyspike.report.write_page import write_report
from tests.report.browser import Browser, program
from tests.report.made import made_run
from tests.report.payloads import PAYLOADS
from tests.report.test_page import hostile_run

pytestmark = pytest.mark.skipif(program() is None, reason="no Chromium on this machine (Debian: apt install chromium)")


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    browser = Browser(tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """One run with everything, three runs, one that trains, and a large one."""
    root = tmp_path_factory.mktemp("pages")
    full = hostile_run(root / "full")
    made_run(root / "b", settings=["train.seed=1"], epochs=5, layers=3)
    made_run(root / "c", ended=False, accuracy=50.0)
    (root / "empty").mkdir()
    empty = made_run(root / "empty", ended=False)
    for name in ("metrics", "layers", "steps", "health"):
        (empty.root / f"{name}.csv").unlink()
    actual = {
        "full": [read_run(full.root)],
        "three": read_runs([root / "b", root / "c", full.root]),
        "killed": [read_run(root / "c")],
        "empty": [read_run(empty.root)],
        "boxes": [read_run(made_run(root / "boxes", boxes=True, epochs=6).root)],
        "large": [read_run(made_run(root / "large", epochs=200, layers=40, steps=4).root)],
    }
    return {name: write_report(runs, root / f"{name}.html") for name, runs in actual.items()}


def opened(browser, page, width=1200, theme="light"):
    browser.screen(width, 900, theme)
    browser.open(page)
    browser.run("new Promise(done => requestAnimationFrame(() => setTimeout(done, 20)))")


def quiet(browser, page):
    browser.run("new Promise(done => requestAnimationFrame(() => setTimeout(done, 20)))")
    assert browser.complaints() == []
    assert browser.requests() == [page.resolve().as_uri()]
    assert browser.run("window.pwned === undefined && parent.pwned === undefined")


@pytest.mark.parametrize("width", [1200, 360])
@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("name", ["full", "three", "killed", "empty", "boxes", "large"])
def test_a_page_opens_without_complaints_or_requests(browser, pages, name, theme, width):
    opened(browser, pages[name], width, theme)
    quiet(browser, pages[name])
    assert browser.run("document.documentElement.scrollWidth <= innerWidth")
    dark = browser.run("getComputedStyle(document.body).backgroundColor") == "rgb(20, 23, 28)"
    assert dark is (theme == "dark")
    lines = browser.run("document.querySelectorAll('figure.score path.curve').length")
    assert lines == {"empty": 0, "boxes": 1}.get(name, lines) and (lines >= 2 or name in ("empty", "boxes"))
    drawn = "[...document.querySelectorAll('svg[role=img]')].filter(s => s.getClientRects().length)"
    assert browser.run(f"{drawn}.every(s => s.getAttribute('aria-label').length > 20)")
    labels = "[...document.querySelectorAll('input, select')].every(e => e.labels.length || e.ariaLabel)"
    assert browser.run(labels)


def test_the_theme_button(browser, pages):
    opened(browser, pages["full"])
    colours = []
    for _ in range(3):
        browser.run("document.getElementById('theme').click()")
        colours.append(browser.run("getComputedStyle(document.body).backgroundColor"))
    assert colours == ["rgb(255, 255, 255)", "rgb(20, 23, 28)", "rgb(255, 255, 255)"]
    quiet(browser, pages["full"])


def test_the_slider_of_the_curves_by_keyboard_and_pointer(browser, pages):
    opened(browser, pages["three"])
    browser.run("document.getElementById('curve-epoch').focus()")
    assert browser.run("document.getElementById('curve-epoch-value').textContent") == "5"
    browser.key("Home", 36)
    assert browser.run("document.getElementById('curve-epoch-value').textContent") == "1"
    browser.key("ArrowRight", 39)
    assert browser.run("document.getElementById('curve-epoch').getAttribute('aria-valuetext')") == "epoch 2"
    assert browser.run("document.querySelector('figure.score .legend b').textContent") != ""
    box = browser.run("(() => { const r = document.querySelector('#figure-loss svg').getBoundingClientRect(); "
                      "scrollTo(0, r.top + scrollY - 200); const n = document.querySelector('#figure-loss svg')"
                      ".getBoundingClientRect(); return [n.left + n.width - 20, n.top + 50]; })()")  # fmt: skip
    browser.call("Input.dispatchMouseEvent", type="mouseMoved", x=box[0], y=box[1])
    assert browser.run("document.getElementById('curve-epoch-value').textContent") == "5"
    quiet(browser, pages["three"])


def test_scale_and_legend_of_the_curves(browser, pages):
    opened(browser, pages["full"])
    before = browser.run("document.querySelector('#figure-loss path').getAttribute('d')")
    browser.run("document.getElementById('log-loss').click()")
    assert browser.run("document.querySelector('#figure-loss path').getAttribute('d')") != before
    count = "document.querySelectorAll('#figure-loss path.curve').length"
    lines = browser.run(count)
    browser.run("document.querySelector('#figure-loss .legend button').click()")
    assert browser.run(count) == lines - 1
    assert browser.run("document.querySelector('#figure-loss .legend button').ariaPressed") == "false"
    browser.run("document.querySelector('#figure-loss .legend button').click()")
    assert browser.run(count) == lines
    quiet(browser, pages["full"])


def choose(browser, name, value):
    browser.run(
        f"(() => {{ const e = document.getElementById('{name}'); e.value = '{value}'; "
        "e.dispatchEvent(new Event('change')); e.dispatchEvent(new Event('input')); })()"
    )


def test_the_controls_of_the_layers(browser, pages):
    opened(browser, pages["three"])
    caption = "document.querySelector('#figure-layers figcaption').textContent"
    assert browser.run(caption).startswith("threshold V by epoch")
    choose(browser, "quantity", "silent")
    assert browser.run(caption).startswith("share of silent neurons")
    choose(browser, "layer-run", "1")
    assert browser.run("document.getElementById('layer-epoch-value').textContent") == "3"
    choose(browser, "layer-epoch", "0")
    assert browser.run("document.getElementById('layer-epoch-value').textContent") == "1"
    assert "epoch 1" in browser.run("document.querySelector('#figure-rates figcaption').textContent")
    choose(browser, "layer-name", "1")
    assert browser.run("document.querySelectorAll('#figure-layers path.strong').length") == 1
    for figure in ("#figure-layers", "#figure-profile", "#figure-rates", "#layer-table"):
        browser.run(f"document.querySelector('{figure} details').open = true")
    browser.run("new Promise(done => setTimeout(done, 50))")
    assert browser.run("document.querySelectorAll('#layer-table tbody tr').length") == 3
    choose(browser, "layer-epoch", "1")
    assert "epoch 2" in browser.run("document.querySelector('#layer-table caption').textContent")
    quiet(browser, pages["three"])


def test_predictions_show_texts_as_they_are(browser, pages):
    opened(browser, pages["full"])
    count = "document.querySelectorAll('#samples > li').length"
    assert browser.run(count) == len(PAYLOADS) + 1
    assert browser.run("document.querySelector('#samples h4').textContent").startswith(f"class {PAYLOADS[0]}")
    choose(browser, "sample-kind", "wrong")
    assert browser.run(count) == 1 and browser.run("document.querySelector('#samples img').getAttribute('src')") == ""
    assert browser.run("document.querySelectorAll('#figure-confusion rect').length") == 4
    names = browser.run("[...document.querySelectorAll('#layer-name option')].map(o => o.textContent)")
    assert names == ["all", *PAYLOADS, "head"] or len(names) == len(PAYLOADS) + 2
    quiet(browser, pages["full"])


def test_boxes_have_lines_through_evaluated_epochs_and_pictures(browser, pages):
    opened(browser, pages["boxes"])
    path = browser.run("document.querySelector('figure.score path.curve').getAttribute('d')")
    assert path.count("M") == 1 and path.count("L") == 2  # epochs 2, 4, 6
    assert browser.run("document.querySelectorAll('#figure-boxes path.curve').length") == 2
    assert browser.run("document.querySelector('img.boxes').naturalWidth") == 12
    hidden = "[...document.querySelectorAll('nav li.hidden')].map(e => e.textContent)"
    assert browser.run(hidden) == ["Time steps", "Predictions"]
    assert browser.run("document.querySelector('#boxes tbody th').textContent") == "all"
    choose(browser, "layer-epoch", "0")
    quiet(browser, pages["boxes"])


def test_health_is_on_the_time_axis(browser, pages):
    opened(browser, pages["full"])
    assert browser.run("document.querySelectorAll('figure.score .event').length") == len(PAYLOADS)
    printed = browser.run("document.querySelector('#figure-loss .event title').textContent")
    assert printed.startswith("epoch 1: ")


def test_recipe_switch_navigation_and_skip_link(browser, pages):
    opened(browser, pages["full"])
    rows = "[...document.querySelectorAll('#recipe tbody tr')].filter(r => r.offsetParent).length"
    before = browser.run(rows)
    browser.run("document.getElementById('only-changed').click()")
    assert 1 == browser.run(rows) < before
    targets = (
        "[...document.querySelectorAll('nav a, .skip')].every(a => document.querySelector(a.getAttribute('href')))"
    )
    assert browser.run(targets)
    browser.key("Tab", 9)
    assert browser.run("document.activeElement.className") == "skip"
    assert browser.run("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    assert browser.run("['header', 'nav', 'main', 'footer'].every(n => document.querySelectorAll(n).length === 1)")
    quiet(browser, pages["full"])


def test_without_javascript_there_are_the_tables(browser, pages):
    browser.call("Emulation.setScriptExecutionDisabled", value=True)
    try:
        browser.screen(1200)
        browser.open(pages["three"])
        text = browser.call("Accessibility.getFullAXTree")
        words = " ".join(str(node.get("name", {}).get("value", "")) for node in text["nodes"])
        assert "Without JavaScript" in words and "3 runs, best first" in words and "Theme" not in words
    finally:
        browser.call("Emulation.setScriptExecutionDisabled", value=False)


def test_it_prints(browser, pages):
    opened(browser, pages["full"], theme="dark")
    browser.call("Emulation.setEmulatedMedia", media="print")
    assert browser.run("getComputedStyle(document.querySelector('nav')).display") == "none"
    assert browser.run("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert len(browser.call("Page.printToPDF")["data"]) > 10_000
    opened(browser, pages["three"])
    browser.run("dispatchEvent(new Event('beforeprint'))")
    assert browser.run("document.querySelectorAll('details.run:not([open])').length") == 0
    browser.run("dispatchEvent(new Event('afterprint'))")
    assert browser.run("document.querySelectorAll('details.run[open]').length") == 0
    browser.call("Emulation.setEmulatedMedia", media="")


def test_scores_that_are_not_finite_and_the_zero_of_an_axis(browser, tmp_path):
    view = read_run(hostile_run(tmp_path / "a").root)
    means = [[-0.0009, -0.009, -0.029], [-0.0405, -0.0012, -0.0724]]
    view.details["membranes"] |= {"mean": means, "std": means}
    picture = view.details["pictures"][0]
    view.details["pictures"] = [picture | {"label": 0, "kind": "wrong", "steps": [[[0, float("nan")]]]}]
    page = write_report([view], tmp_path / "page.html")
    opened(browser, page, 360)
    quiet(browser, page)
    assert "scores are not finite" in browser.run("document.querySelector('#samples tbody').textContent")
    labels = browser.run("[...document.querySelectorAll('#figure-drift svg text')].map(t => t.textContent)")
    assert "0" in labels and not [text for text in labels if "e-" in text]
