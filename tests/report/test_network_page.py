"""The page of a network in a real headless Chromium: the spikes of the integer network, every control, no requests."""

from __future__ import annotations

import base64
import json
import re

import numpy as np
import pytest
import torch

from steadyspike.deploy import CannotFold, fold
from steadyspike.deploy.integers import IntegerNetwork
from steadyspike.report.network_page.write import write_network_page
from tests.deploy.trained import trained
from tests.report.browser import Browser, program
from tests.report.payloads import PAYLOADS

pytestmark = pytest.mark.skipif(program() is None, reason="no Chromium on this machine (Debian: apt install chromium)")
FACTS = {"model": "a <b>model</b>", "data": "images", "classes": PAYLOADS[:10], "mean": [0.5] * 3, "std": [0.25] * 3}
EVENTS = {"model": "events", "frames": {"by": "number", "timesteps": 4, "size": None}}


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    browser = Browser(tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """Pages of an image network with attention-free residual blocks, and of an event network; with their networks."""
    root, made = tmp_path_factory.mktemp("pages"), {}
    for name, facts in (("resnet19_tiny", FACTS), ("cnn7_tiny", EVENTS), ("spikformer_tiny", {})):
        model, x = trained(name)
        network = fold(model, x, mode="split")
        made[name] = write_network_page(network, root / f"{name}.html", facts, x, [0, 1, 2]), network, x
    return made


def opened(browser, path, width=1200, theme="light"):
    browser.screen(width, 900, theme)
    browser.open(path)


def quiet(browser, path):
    assert browser.complaints() == []
    assert browser.requests() == [path.resolve().as_uri()]
    assert browser.run("typeof pwned === 'undefined'")


def spikes_in_browser(browser, x, timed):
    """Spikes of all layers of every sample, [B][T][layer][neuron as stored], by the page's own network."""
    first = (x.transpose(0, 1) if timed else x[:, None]).contiguous()
    raw = base64.b64encode(first.numpy().astype("<f4").tobytes()).decode()
    text = browser.run(
        f"""(() => {{
          const {{ network, runThrough, table }} = steadyspike;
          const bytes = table({{ type: "f4", shape: [1], data: "{raw}" }});
          const frames = {first.shape[1]}, size = {first[0, 0].numel()}, steps = network.program.timesteps, all = [];
          for (let b = 0; b < {len(first)}; b++) {{
            const at = (t) => (b * frames + t) * size;
            const input = Array.from({{ length: frames }}, (_, t) => bytes.slice(at(t), at(t + 1)));
            for (const seen of runThrough(network, input, steps)) {{
              for (const spikes of seen.spikes) all.push(String.fromCharCode(...spikes.map((s) => s + 48)));
              all.push(Array.from(seen.scores).join(" "));
            }}
          }}
          return all.join("|");
        }})()"""
    )
    return text.split("|")


def expected(network, x, steps):
    """The same from `IntegerNetwork`."""
    seen = {}
    integer = IntegerNetwork(network)
    out = integer.run(x, watch=lambda n, v: seen.__setitem__(n.name, (v > 0).numpy()) if n.op == "lif" else None)
    rows = []
    for b in range(out.shape[1]):
        for t in range(steps):
            for spikes in seen.values():
                stored = spikes[t, b].reshape(spikes.shape[2], -1).T.reshape(-1)
                rows.append("".join("1" if s else "0" for s in stored))
            rows.append(out[t, b].numpy())
    return rows


def compare(got, rows):
    fired = 0
    assert len(got) == len(rows)
    for mine, row in zip(got, rows):
        if isinstance(row, str):
            assert mine == row
            fired += row.count("1")
        else:
            assert np.allclose(np.array(mine.split(), float), row, rtol=1e-5, atol=1e-6)
    assert fired > 0


@pytest.mark.parametrize("name", ["resnet19_tiny", "cnn7_tiny", "spikformer_tiny"])
def test_the_spikes_are_those_of_the_integer_network(browser, pages, name):
    path, network, x = pages[name]
    opened(browser, path)
    compare(spikes_in_browser(browser, x, network.graph.input.timed), expected(network, x, 4))
    quiet(browser, path)


def test_no_spike_differs_on_a_thousand_images(browser, tmp_path):
    model, x = trained("resnet19_tiny")
    network = fold(model, x)
    opened(browser, write_network_page(network, tmp_path / "page.html", {}))
    light = torch.linspace(0.2, 2, 1000)[:, None, None, None]
    images = light * torch.rand(1000, 3, 16, 16, generator=torch.Generator().manual_seed(7))
    for part in images.split(100):
        compare(spikes_in_browser(browser, part, False), expected(network, part, 4))


@pytest.mark.parametrize("width", [1200, 360])
@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("name", ["resnet19_tiny", "cnn7_tiny"])
def test_a_page_opens_without_complaints_or_requests(browser, pages, name, theme, width):
    path, network, _ = pages[name]
    opened(browser, path, width, theme)
    quiet(browser, path)
    assert browser.run("document.documentElement.scrollWidth <= innerWidth")
    assert (browser.run("getComputedStyle(document.body).backgroundColor") == "rgb(20, 23, 28)") is (theme == "dark")
    layers = len(network.graph.neurons())
    assert browser.run("document.querySelectorAll('#layers-list canvas').length") == layers
    drawn = "[...document.querySelectorAll('#layers-list canvas, svg[role=img]')]"
    assert browser.run(f"{drawn}.every(e => e.getAttribute('aria-label').length > 20)")
    assert browser.run("[...document.querySelectorAll('input, select')].every(e => e.labels.length || e.ariaLabel)")
    assert browser.run("document.getElementById('draw').getClientRects().length > 0") is (name == "resnet19_tiny")


def set_value(browser, name, value):
    events = "e.dispatchEvent(new Event('input', {bubbles: true})); e.dispatchEvent(new Event('change'));"
    browser.run(f"(() => {{ const e = document.getElementById('{name}'); e.value = '{value}'; {events} }})()")


def text(browser, name):
    return browser.run(f"document.getElementById('{name}').textContent")


def test_controls(browser, pages):
    path, _, _ = pages["resnet19_tiny"]
    opened(browser, path)
    assert text(browser, "what").startswith("The network looks at sample 1")
    set_value(browser, "step", 2)
    assert text(browser, "step-value") == "3 of 4"
    assert "step 3" in browser.run("document.querySelector('canvas.tiles').ariaLabel")
    browser.run("document.getElementById('step').focus()")
    browser.key("ArrowRight", 39)
    assert text(browser, "step-value") == "4 of 4"
    set_value(browser, "confidence", 1)
    assert text(browser, "answer-text").startswith("decided at step 1 of 4")
    one = int(re.search(r"([\d,]+) accumulates", text(browser, "energy"))[1].replace(",", ""))
    set_value(browser, "confidence", 100)
    assert text(browser, "answer-text").startswith("after all 4 steps")
    assert int(re.search(r"([\d,]+) accumulates", text(browser, "energy"))[1].replace(",", "")) > one > 0
    set_value(browser, "layer", 3)
    set_value(browser, "channel", 99)  # is cut to the last one
    assert int(browser.run("document.getElementById('channel').value")) < 99
    assert "step 4" in text(browser, "membrane-text")
    before = text(browser, "membrane-text")
    browser.run("document.querySelector('canvas.tiles').click()")
    assert text(browser, "membrane-text") != before
    set_value(browser, "sample", 1)
    assert "sample 2" in text(browser, "what") and PAYLOADS[1] in text(browser, "what")
    quiet(browser, path)


def test_drawing_with_the_mouse(browser, pages):
    path, _, _ = pages["resnet19_tiny"]
    opened(browser, path)
    box = json.loads(browser.run("JSON.stringify(document.getElementById('drawing').getBoundingClientRect())"))
    x, y = box["x"] + 60, box["y"] + 60
    browser.call("Input.dispatchMouseEvent", type="mousePressed", x=x, y=y, button="left", clickCount=1)
    browser.call("Input.dispatchMouseEvent", type="mouseMoved", x=x + 80, y=y + 80, button="left", buttons=1)
    browser.call("Input.dispatchMouseEvent", type="mouseReleased", x=x + 80, y=y + 80, button="left", clickCount=1)
    assert text(browser, "what") == "The network looks at your drawing."
    assert browser.run("document.getElementById('frame').getContext('2d').getImageData(0, 0, 9, 9).data.some(v => v)")
    quiet(browser, path)


def test_dropped_files(browser, pages):
    path, _, _ = pages["cnn7_tiny"]
    opened(browser, path)
    events = "[3, 4, 128, 0, 9, 5, 6, 0, 0, 12, 1, 240, 0, 0, 0, 7, 8, 128, 1, 0]"
    drop = """(async () => {{
      const files = new DataTransfer();
      files.items.add(new File([new Uint8Array({})], "<i>r.bin"));
      dispatchEvent(new DragEvent("drop", {{ dataTransfer: files }}));
      await new Promise((done) => setTimeout(done, 300));
    }})()"""
    browser.run(drop.format(events))
    assert text(browser, "what") == "The network looks at <i>r.bin." and text(browser, "problem") == ""
    browser.run(drop.format("[1, 2, 3]"))
    assert "truncated" in text(browser, "problem")
    browser.run(drop.format("[200, 2, 3, 4, 5]"))
    assert "outside 16 x 16" in text(browser, "problem")
    quiet(browser, path)


def test_the_theme_button(browser, pages):
    opened(browser, pages["cnn7_tiny"][0])
    colours = []
    for _ in range(3):
        browser.run("document.getElementById('theme').click()")
        colours.append(browser.run("getComputedStyle(document.body).backgroundColor"))
    assert colours == ["rgb(255, 255, 255)", "rgb(20, 23, 28)", "rgb(255, 255, 255)"]


def test_what_has_no_integer_form_is_refused(tmp_path):
    model, x = trained("ms_resnet_tiny")
    with pytest.raises(CannotFold, match="reads real numbers"):
        write_network_page(fold(model, x), tmp_path / "page.html", {})
