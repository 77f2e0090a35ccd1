"""The tables of docs/methods.md are what the code does: every row is computed here and looked up there."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from steadyspike import models
from steadyspike.nn.compose import RULES
from steadyspike.nn.factory import Site
from steadyspike.nn.initial_potential import ConstantInit, MPInit
from steadyspike.nn.loss import LOSSES, TERMS
from steadyspike.nn.neuron import Neuron
from steadyspike.nn.neurons import NEURONS, neuron_factory
from steadyspike.nn.norm import NORMS
from steadyspike.paper.statistics.overhead import Extra, growth, layer_overhead, method_overhead, overhead, total

PAGE = Path(__file__).parents[2] / "docs" / "methods.md"
OVERHEAD = {
    "MP-Init + TrSG": ("tdbn", "lif"),
    "PLIF": ("tdbn", "plif"),
    "LTMD": ("tdbn", "ltmd"),
    "DIET-SNN": ("tdbn", "diet"),
    "MPS": ("tdbn", "mps"),
    "TEBN": ("tebn", "lif-tebn"),
    "MPBN": ("tdbn", "mpbn"),
    "BNTT": ("bntt", "lif-bntt"),
    "TAB": ("tab", "lif-tab"),
    "IMP": ("tdbn", "imp"),
}


def neuron_rows() -> list[str]:
    rows = []
    for name in NEURONS:
        layer = neuron_factory(name).at(Site(2, (2, 2), 2))
        spec = layer.spec
        learned = ", ".join(n for n, p in layer.named_parameters() if p.requires_grad) or "-"
        surrogate = ", ".join(
            [spec.surrogate.name, *(f"{k} {v:g}" for k, v in vars(spec.surrogate).items() if (k, v) != ("scale", 1.0))]
        )
        start = "MP-Init" if isinstance(layer.init, MPInit) else "0" if isinstance(layer.init, ConstantInit) else "IMP"
        cells = [
            f"`{name}`",
            spec.family if layer.spiking else "-",
            surrogate if layer.spiking else "-",
            spec.reset.kind,
            {"none": "no", "spike": "S", "product": "V*S"}[str(spec.reset.detach)],
            (">" if spec.strict else ">=") if layer.spiking else "never",
            "a*I" if spec.decay_input else "I",
            f"{float(layer.threshold.detach()):.3g}" if layer.spiking else "-",
            f"{1 - float(layer.leak.detach()):.2f}",
            start,
            learned,
        ]
        rows.append("| " + " | ".join(cells) + " |")
    return rows


def overhead_rows() -> list[str]:
    rows = []
    for title, (norm, name) in OVERHEAD.items():
        with torch.device("meta"):
            net = models.create("resnet19", num_classes=100, timesteps=4, norm=norm, neuron=neuron_factory(name))
        extra = total(overhead(net))
        cells = [title, growth(norm, neuron_factory(name)), f"{extra.parameters:,}", f"{extra.statistics:,}"]
        rows.append("| " + " | ".join(cells) + " |")
    return rows


@pytest.mark.parametrize("rows", [neuron_rows, overhead_rows])
def test_tables_show_what_the_code_does(rows) -> None:
    page = PAGE.read_text()
    for row in rows():
        assert row in page, f"docs/methods.md lacks the row\n{row}"


def test_every_name_is_on_the_page() -> None:
    page = PAGE.read_text()
    for name in [*NORMS, *NEURONS, *LOSSES, *TERMS]:
        assert f"`{name}`" in page, name
    refusals = page.split("## Combinations")[1].split("\n## ")[0]
    assert refusals.count("\n- ") >= len(RULES) - 1


def test_overhead_counts_each_kind_as_its_formula() -> None:
    steps, channels, size = 5, 6, (3, 4)
    sites = [Site(channels, size, steps), Site(channels, size, steps)]
    c, t, n = channels, steps, channels * 12
    expected = {
        "MP-Init + TrSG": Extra(2, 1),
        "PLIF": Extra(1, 0),
        "LTMD": Extra(1, 0),
        "DIET-SNN": Extra(2, 0),
        "MPS": Extra(1, 0),
        "TEBN": Extra(t, 0),
        "MPBN": Extra(2 * c, 2 * c),
        "BNTT": Extra(t * c - 2 * c, 2 * c * (t - 1)),
        "TAB": Extra(2 * c * (t - 1) + t, 2 * c * (t - 1)),
        "IMP": Extra(n, 0),
    }
    for title, (norm, name) in OVERHEAD.items():
        extra = method_overhead(norm, neuron_factory(name), sites)
        assert extra == Extra(2 * expected[title].parameters, 2 * expected[title].statistics), title
    per_channel = layer_overhead(neuron_factory("lif", channelwise=True).at(sites[0]))
    assert per_channel == Extra(2 * c, c)


def test_a_plain_network_has_no_overhead() -> None:
    with torch.device("meta"):
        net = models.create("resnet19", timesteps=4, neuron=neuron_factory("lif-tdbn"))
    actual = overhead(net)
    assert total(actual) == Extra(0, 0)
    assert sum(isinstance(net.get_submodule(name), Neuron) for name in actual) > 10
    assert growth("tdbn", neuron_factory("lif-tdbn")) == "0"
