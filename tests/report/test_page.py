"""The HTML report without a browser: what is in it, and that nothing from a file becomes markup."""

import base64
import hashlib
import json
import math
import re
from html.parser import HTMLParser

import numpy as np
import pytest
from typer.testing import CliRunner

from steadyspike.cli import app
from steadyspike.disk.plain_text import plain
from steadyspike.report import details, tables_page
from steadyspike.report.markup import escape, tag
from steadyspike.report.page_data import page_data, thinned
from steadyspike.report.png import data_url, png, smaller
from steadyspike.report.run_view import read_run, read_runs
from steadyspike.report.write_page import embedded, render
from steadyspike.train.files.folder import RunError, RunFolder
from tests.report.made import made_run, rewritten
from tests.report.payloads import PAYLOADS


def call(*arguments):
    return CliRunner().invoke(app, [str(a) for a in arguments])


class Seen(HTMLParser):
    """Elements and attributes of a page, and the text of its scripts and styles."""

    def __init__(self, page):
        super().__init__()
        self.elements, self.inside, self.texts = [], None, {}
        self.feed(page)

    def handle_starttag(self, name, attributes):
        self.elements.append((name, dict(attributes)))
        self.inside = (name, dict(attributes).get("id", ""))

    def handle_endtag(self, name):
        self.inside = None

    def handle_data(self, text):
        if self.inside is not None:
            self.texts[self.inside] = self.texts.get(self.inside, "") + text


def hostile_run(root):
    """A run in which every text that a file can bring is a payload."""
    payload = PAYLOADS[0]
    folder = made_run(root, names=list(PAYLOADS), name=payload, health=[f'1,1,k,"{p}","{p}"' for p in quoted(PAYLOADS)],
                      settings=[f"about={json.dumps(payload)}", f"note={json.dumps(PAYLOADS[1])}"])  # fmt: skip
    about = folder.read_json("run.json")
    about["environment"]["command"] = list(PAYLOADS)
    about["data"]["name"] = payload
    about["data"]["split"]["parts"] = {payload: {"samples": payload, "fingerprint": payload}}
    folder.write_json("run.json", about)
    rewritten(
        folder, "origin.json", base=payload, changed=[{"key": "neuron.tau", "base": payload, "value": 1, "by": payload}]
    )
    rewritten(folder, "result.json", status=payload, message=payload, weights=payload, selection=payload)
    (root / "weights.safetensors").write_bytes(b"x")
    image = data_url(np.zeros((4, 4, 3), np.uint8))
    pictures = [
        {"label": i % 2, "kind": k, "steps": [[[0, 0.5], [1, 0.4]]], "images": [image]} for i, k in enumerate(PAYLOADS)
    ]
    pictures.append({"label": 0, "kind": "wrong", "steps": [[[0, 0.5]]], "images": ["javascript:alert(1)"]})
    folder.write_json("details.json", {
        "weights": hashlib.sha256(b"x").hexdigest(), "part": "test", "samples": 10, "classes": list(PAYLOADS[:2]),
        "accuracy": 50.0, "recall": [0.5, 0.5], "confusion": [[1, 2], [3, 4]], "confused": [[0, 1, 2]],
        "pictures": pictures,
        "membranes": {"layers": list(PAYLOADS[:2]), "mean": [[0.1], [0.2]], "std": [[1], [1]], "samples": 4},
    })  # fmt: skip
    return folder


def quoted(texts):
    return [text.replace('"', '""').replace("\n", " ").replace("\r", " ") for text in texts]


def check_markup(page):
    """The page has its own elements and scripts, and no others."""
    seen = Seen(page)
    names = {name for name, _ in seen.elements}
    assert not names & {"iframe", "object", "embed", "base", "form", "link", "img", "video", "audio", "x", "math"}
    scripts = [attributes for name, attributes in seen.elements if name == "script"]
    assert scripts == [{"type": "application/json", "id": "data"}, {}]
    assert sum(name == "style" for name, _ in seen.elements) == 1
    for name, attributes in seen.elements:
        assert not any(key.startswith("on") or key in ("style", "srcdoc", "src") for key in attributes), (
            name,
            attributes,
        )
        if "href" in attributes:
            assert attributes["href"].startswith("#")
    return seen


def test_hostile_texts_stay_text(tmp_path):
    views = [read_run(hostile_run(tmp_path / "a").root, PAYLOADS[0]), read_run(made_run(tmp_path / "b").root)]
    for runs in ([views[0]], views):
        page = render(runs)
        seen = check_markup(page)
        kept = json.dumps(page_data(runs), ensure_ascii=False)
        shown = "".join(c if c.isprintable() else json.dumps(plain(c))[1:-1] for c in kept)
        shown = re.sub(r"\\u00(\w\w)", r"\\\\x\1", shown)  # control characters, which JSON escapes itself
        assert json.loads(seen.texts["script", "data"]) == json.loads(shown)
        inside = page.partition('id="data">')[2].partition("</script>")[0]
        assert not re.search("[<>&\u2028\u2029]", inside)
        assert escape(PAYLOADS[0]) in page


def test_the_policy_knows_script_and_style_and_nothing_else(tmp_path):
    page = render(read_runs([made_run(tmp_path / "a").root]))
    policy = re.search('Content-Security-Policy" content="([^"]*)"', page)[1].replace("&#x27;", "'")
    assert policy.startswith("default-src 'none';") and "unsafe" not in policy and "http" not in policy
    for name, rule in (("style", "style-src"), ("script", "script-src")):
        text = re.findall(f"<{name}>(.*?)</{name}>", page, re.S)[-1]
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{rule} 'sha256-{digest}'" in policy
    assert "http://www.w3.org/2000/svg" in page
    assert not re.search(r"(?:src|href|url\()=?[\"']?https?:", page)


def test_the_page_has_its_tables_without_a_script(tmp_path):
    made_run(tmp_path / "a", settings=["neuron.tau=3.0"])
    rewritten(made_run(tmp_path / "b"), "origin.json",
              changed=[{"key": "schedule.epochs", "base": 12, "value": 3, "by": "--set"}])  # fmt: skip
    one = render(read_runs([tmp_path / "b"]))
    for text in ("90.00 %", "a constant guess", "10.00 %", "+80.00 points", "no number", "body.1.lif", "f" * 16,
                 "<mark>3</mark>", "12 (set on the command line)", "a processor", "Nothing was found"):  # fmt: skip
        assert text in one
    two = render(read_runs([tmp_path / "a", tmp_path / "b"]))
    assert "2 runs, best first" in two and "neuron.tau" in two and two.count('class="run"') == 8


def test_a_run_that_goes_on_or_was_killed_is_marked(tmp_path):
    folder = made_run(tmp_path / "a", ended=False)
    assert "killed. " in render([read_run(folder.root)]) and "so far" in render([read_run(folder.root)])
    with folder.locked():
        page = render([read_run(folder.root)])
    assert ">running</span>" in page and "this is what it has written so far" in page
    for name in ("metrics", "layers", "steps", "health"):
        (folder.root / f"{name}.csv").unlink()
    assert "No epoch has ended yet" in render([read_run(folder.root)])


def test_the_command_writes_where_it_says(tmp_path, monkeypatch):
    made_run(tmp_path / "demo" / "001")
    made_run(tmp_path / "demo" / "002", settings=["train.seed=1"])
    done = call("report", tmp_path / "demo/001", "--no-data")
    assert done.exit_code == 0, done.output
    assert "--no-data" in (tmp_path / "demo/001/report.html").read_text()
    assert call("report", tmp_path / "demo/001", tmp_path / "demo/002", "--no-data").exit_code == 0
    page = (tmp_path / "demo/report.html").read_text()
    assert "2 runs" in page and "first run: demo/001" in page and "to baseline" not in page
    out = tmp_path / "elsewhere.html"
    based = ("--baseline", tmp_path / "demo/002", "--no-data", "-o", out)
    assert call("report", tmp_path / "demo/001", *based).exit_code == 0
    assert "baseline: demo/002" in out.read_text()


def test_a_damaged_run_is_one_line_and_no_file(tmp_path):
    folder = made_run(tmp_path / "a")
    (folder.root / "layers.csv").write_text("x")
    done = call("report", folder.root)
    assert done.exit_code == 1 and done.output.startswith("error: ") and done.output.count("\n") == 1
    assert not (folder.root / "report.html").exists()
    assert call("report", tmp_path / "nothing").exit_code == 1


def test_files_that_are_done_without_are_told_at_the_top(tmp_path, monkeypatch):
    folder = made_run(tmp_path / "a")
    (folder.root / "origin.json").write_text("{")

    def damaged(*_):
        raise RunError("the weights are damaged")

    monkeypatch.setattr(details, "make_details", damaged)
    done = call("report", folder.root)
    assert done.exit_code == 0 and "origin.json is damaged" in done.output and "weights are damaged" in done.output
    top = (folder.root / "report.html").read_text().partition('id="curves"')[0]
    assert top.count('class="alarm"') == 2 and "no predictions, because" in top
    assert "origin.json is damaged" in call("show", folder.root).output


def test_outputs_that_are_not_finite_are_drawn_as_none(tmp_path):
    view = read_run(made_run(tmp_path / "a").root)
    steps = [[[0, math.nan]], [[0, math.inf]]]
    pictures = [{"label": 0, "kind": "wrong", "steps": steps, "images": []}]
    view.details = {name: [] for name in ("classes", "recall", "confusion", "confused", "samples")}
    view.details |= {"pictures": pictures, "membranes": {"mean": [[math.nan]]}}
    drawn = json.loads(embedded(page_data([view])))["runs"][0]["details"]
    assert drawn["pictures"][0]["steps"] == [[[0, None]], [[0, None]]] and drawn["membranes"]["mean"] == [[None]]


def test_runs_tested_on_different_samples_are_marked(tmp_path):
    roots = [made_run(tmp_path / name, settings=[f"train.seed={i}"]).root for i, name in enumerate("ab")]
    say = "tested on different samples"
    assert say not in render(read_runs(roots)) and say not in call("compare", *roots).output
    data = read_run(roots[1]).about["data"]
    rewritten(RunFolder(roots[1]), "run.json", data=data | {"name": "<b>other"})
    assert f"{say} (digits, &lt;b&gt;other)" in render(read_runs(roots)) and say in call("compare", *roots).output


def test_one_run_named_twice_has_its_report_in_its_folder(tmp_path):
    folder = made_run(tmp_path / "demo" / "001")
    assert call("report", folder.root, folder.root / ".." / "001", "--no-data").exit_code == 0
    assert (folder.root / "report.html").exists() and not (tmp_path / "demo" / "report.html").exists()


def test_runs_without_weights_or_data_say_why(tmp_path):
    folder = made_run(tmp_path / "a")
    done = call("report", folder.root)
    assert done.exit_code == 0, done.output
    assert "no predictions, because" in (folder.root / "report.html").read_text()


def test_large_runs_stay_a_few_megabytes(tmp_path):
    runs = read_runs([made_run(tmp_path / str(i), epochs=200, layers=40, steps=4).root for i in range(2)])
    assert len(render(runs[:1])) < 2e6 and len(render(runs)) < 4e6
    kept = thinned(runs[0].layers, 10_000)
    assert 2 <= len(kept) < 40 and kept[0] == 0 and kept[-1] == 199
    assert page_data(runs)["runs"][0]["layers"]["epochs"][-1] == 200


def test_many_runs_leave_out_their_recipes(tmp_path, monkeypatch):
    monkeypatch.setattr(tables_page, "MOST", 1)
    page = render(read_runs([made_run(tmp_path / name, settings=[f"train.seed={name}"]).root for name in "12"]))
    assert "Left out for 2 runs" in page and "train.seed" in page and page.count('class="run"') == 0


def test_pictures():
    from io import BytesIO

    from PIL import Image

    pixels = np.random.default_rng(0).integers(0, 256, (5, 7, 3), dtype=np.uint8)
    assert (np.asarray(Image.open(BytesIO(png(pixels)))) == pixels).all()
    assert smaller(np.full((224, 200, 3), 9, np.uint8)).shape == (74, 66, 3) and smaller(pixels) is pixels


def test_markup_is_escaped_once():
    assert tag("p", "<b>", tag("i", "&")) == "<p>&lt;b&gt;<i>&amp;</i></p>"
    assert escape("a\x00\x1b\u202e") == "a\\x00\\x1b\\u202e" and tag("p", class_='"') == '<p class="&quot;"></p>'
    assert embedded({"a": "</script>\u2028"}) == '{"a":"\\u003c/script\\u003e\\\\u2028"}'
    assert embedded({"a": ["x\x1b\u202e\udcff"]}) == '{"a":["x\\\\x1b\\\\u202e\\\\udcff"]}'
    with pytest.raises(ValueError):
        embedded({"a": float("nan")})


def luminance(colour):
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(a, b):
    low, high = sorted((luminance(a), luminance(b)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", [0, 1])
def test_colours_have_enough_contrast(theme):
    from steadyspike.report.write_page import page_file

    actual = re.findall(r"--(\w+): light-dark\((#\w{6}), (#\w{6})\)", page_file("style.css"))
    colours = {name: pair[theme] for name, *pair in actual}
    for text in ("ink", "quiet", "link", "good", "bad"):
        for below in ("page", "card"):
            assert contrast(colours[text], colours[below]) >= 4.5, (text, below)
    for line in (*(f"c{i}" for i in range(8)), "ramp0", "ramp1", "edge", "focus", "bad"):
        assert contrast(colours[line], colours["page"]) >= 3, line
    for cell in ("heat0", "heat1", "mark"):
        assert contrast(colours["ink"], colours[cell]) >= 4.5, cell
