"""Figures: arrays in, a Figure out, in vector form and as pixels, without touching the user's own settings."""

import matplotlib
import numpy as np
import pytest

from steadyspike.paper.experiments import networks, simulations, stationarity, sweeps
from steadyspike.paper.figures import curves, matrices, over_steps, windows
from steadyspike.paper.figures.style import COLOURS, save
from steadyspike.paper.registry import EXPERIMENTS
from steadyspike.paper.work.page import Page
from steadyspike.paper.work.scales import Scale
from steadyspike.paper.work.store import Store
from steadyspike.paper.work.work import Work

T, K = 3, 11
SHARES = np.full((T, K), 1 / K)
GRID = windows.membrane_grid(cells=51)
FIGURES = {
    "distributions": lambda: over_steps.step_distributions({"a": SHARES, "b": SHARES}, "U", (-2, 2)),
    "distances": lambda: over_steps.distances({"a": np.ones(T), "b": np.zeros(T)}, floor=0.1),
    "many layers": lambda: over_steps.distances({str(i): np.ones(T) for i in range(17)}),
    "rates": lambda: over_steps.firing_rates({"x": {"l": np.ones(T)}, "y": {"l": np.ones(T)}}),
    "classes": lambda: over_steps.predicted_classes({"x": SHARES}, [str(i) for i in range(K)]),
    "bars": lambda: over_steps.bars_with_baseline({"a": 0.8}, 0.9, "y", "chance"),
    "groups": lambda: curves.grouped_bars({"soft": {"AS": [[1.0, 2.0], []], "RS": [[3.0], [4.0]]}}, ["V", "W"]),
    "by rate": lambda: curves.accuracy_by_rate({"a": [(0.2, 50.0), (0.1, 40.0)]}),
    "training": lambda: curves.training_curves({"a": {"loss": np.ones(4), "accuracy": np.ones(4)}}),
    "paths": lambda: curves.paths({"x": {"l1": np.ones(3)}}, "V"),
    "values": lambda: curves.layer_values({"x": {"V": [1.0, 2.0]}}, {"x": ["l1", "l2"]}),
    "cosines": lambda: matrices.cosines({"x": np.eye(T)}, "contribution"),
    "projections": lambda: matrices.projections({"x": [np.zeros((4, 2))]}, np.array([0, 0, 1, 1]), ["a", "b"], [1]),
    "windows": lambda: windows.surrogate_windows(GRID, {1.0: np.ones(51)}, {1.0: {"AS": np.ones(51)}}),
}


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_is_drawn_and_saved(name, tmp_path):
    before = dict(matplotlib.rcParams)
    figure = FIGURES[name]()
    ending = "png" if name in ("distributions", "cosines") else "svg"
    save(figure, tmp_path / f"figure.{ending}")
    assert (tmp_path / f"figure.{ending}").stat().st_size > 1000
    assert dict(matplotlib.rcParams) == before


def test_bars_show_every_seed_and_keep_the_place_of_what_did_not_run():
    axis = FIGURES["groups"]().axes[0]
    assert [label.get_text() for label in axis.get_xticklabels()] == ["V", "W"]
    assert sorted(bar.get_height() for bar in axis.patches if np.isfinite(bar.get_height())) == [1.5, 3.0, 4.0]
    assert sum(len(line.get_xdata()) for line in axis.lines) == 4


def test_panels_of_one_scale_show_all_of_every_panel():
    """The first panel's limits cut the second one's curves."""
    axes = over_steps.firing_rates({"x": {"l": np.full(T, 0.1)}, "y": {"l": np.full(T, 0.9)}}).axes
    assert all(axis.get_ylim()[0] == 0 and axis.get_ylim()[1] > 0.9 for axis in axes)


def test_a_silent_layer_is_called_silent():
    """It was drawn as a distribution of zeros, equal at every step."""
    shares = {"a": SHARES, "b": np.full((T, K), np.nan)}
    figure = over_steps.step_distributions(shares, "U", {"a": (-2, 2), "b": (-2, 2)})
    assert [len(axis.patches) for axis in figure.axes] == [T, 0]
    assert "silent" in figure.axes[1].texts[0].get_text()


@pytest.mark.parametrize(("given", "still"), [("", "digits"), ("cifar10", "cifar10")])
@pytest.mark.parametrize("name", ["threshold-paths", "final-values"])
def test_figures_of_small_runs_name_the_data_that_were_used(name, given, still, monkeypatch):
    """The panels were called CIFAR-100 and DVS-CIFAR10 over the embedded digits."""
    values = {"threshold": [1.0, 0.9], "tau": [2.0, 2.1], "running_mean": [0.0, 0.4]}
    monkeypatch.setattr(sweeps, "_layer_table", lambda *_: {"stem.lif": values})
    page = EXPERIMENTS[name].page(Work(Scale("mini", given), 1, Store(None)))
    expected = [f"mini: {still} (paper: CIFAR-100)", "mini: digits-events (paper: DVS-CIFAR10)"]
    assert [axis.get_title() for axis in page.figures[name].axes] == expected
    assert [row[0] for row in page.tables[0].rows] == expected
    assert page.tables[0].title != "V at the end"  # it also has the first epoch
    assert all(axis.get_ylabel() for axis in page.figures[name].axes)
    large = EXPERIMENTS[name].page(Work(Scale("paper"), 1, Store(None)))
    assert [axis.get_title() for axis in large.figures[name].axes] == ["CIFAR-100", "DVS-CIFAR10"]


@pytest.mark.parametrize("name", ["membrane", "activation"])
def test_distributions_say_their_layer_and_both_axes(name, monkeypatch):
    layers = np.array(["stem.lif", "body.1.lif", "body.2.lif"])
    one = {"layers": layers, "membrane": np.stack([SHARES] * 3), "current": np.stack([SHARES] * 3),
           "rates": np.ones((3, T)), "current_edges": np.stack([np.linspace(-1, 1, K - 1)] * 3)}  # fmt: skip
    monkeypatch.setattr(networks, "arrays_of", lambda *_: {"tdBN": one, "TEBN": one})
    (figure,) = EXPERIMENTS[name].page(Work(Scale("mini"), 1, Store(None))).figures.values()
    chosen = layers[networks.middle(3)]
    assert [axis.get_title().split(" (")[0] for axis in figure.axes] == [f"tdBN, {chosen}", f"TEBN, {chosen}"]
    assert figure.axes[0].get_ylabel() == "density" and figure.axes[0].get_xlabel()


def drifting(*distances):
    """Measurements of three layers whose distribution at the first step is so far from that at the last."""
    steps = np.zeros((3, T, K))
    steps[..., 0] = 1.0
    steps[:, 0, 0] -= distances
    steps[:, 0, 1] = distances
    edges = np.stack([np.linspace(-1, 1, K - 1)] * 3)
    layers = np.array(["a", "b", "c"])
    return {"layers": layers, "membrane": steps, "current": steps, "rates": np.ones((3, T)), "current_edges": edges}


@pytest.mark.parametrize("name", ["membrane", "activation"])
def test_pages_of_distributions_say_whether_mp_init_drifts_least(name, monkeypatch):
    silent = drifting(0.9, 0.9, 0.9) | {"rates": np.zeros((3, T))}
    actual = {"tdBN": drifting(0.3, 0.3, 0.3), "TEBN": drifting(0.3, 0.3, 0.03), "MP-Init": drifting(0.1, 0.1, 0.04)}
    assert networks.middle(3) == 2
    monkeypatch.setattr(networks, "arrays_of", lambda *_: actual)
    make = lambda: EXPERIMENTS[name].page(Work(Scale("mini"), 1, Store(None))).tables[0].claims  # noqa: E731
    own, means = make()[:3], make()[3:]
    assert [text.partition(": ")[2].partition(",")[0] for text in (*own, *means)] == [
        "held (+26.00", "did not hold (-1.00", "not measured yet", "held (+22.00", "held (+13.00", "not measured yet",
        "held (0.080)",
    ]  # fmt: skip
    assert own[0].startswith("MP-Init drifts less than tdBN (this layer") and "mean of layers" in means[0]
    actual["TAB"], actual["MP-Init"] = silent, drifting(0.2, 0.2, 0.2)
    assert make()[2].endswith("nothing to judge, TAB is silent") and make()[-1].endswith("did not hold (0.200)")


def test_a_layer_without_a_test_of_independence_is_marked():
    """It looked like a bar of 0 %."""
    one = {"layers": np.array(["a", "b", "c"]), "current": np.zeros((3, 4)), "floor": np.zeros((3, 2)),
           "independent": np.array([0.9, np.nan, np.nan]), "constant": np.array([0.0, 1.0, np.nan]),
           "bounded": np.ones((3, 2, 4))}  # fmt: skip
    one["bounded"][2] = np.nan
    page = Page("")
    stationarity._assumption_of(page, "events", one)
    texts = {
        round(text.get_position()[0]): text.get_text() for text in page.figures["independence-events"].axes[0].texts
    }
    assert texts == {1: "constant", 2: "silent"}


def test_colours_differ_in_lightness_or_hue():
    assert len(set(COLOURS)) == len(COLOURS) == 8


def test_windows_have_the_paper_s_widths_and_heights():
    import torch

    m = torch.linspace(-1, 5, 6001, dtype=torch.float64)
    for v in (0.2, 2.0):
        actual = {family: simulations.output_gradient(m, v, family) for family in ("as", "rs", "trsg")}
        assert [float(actual[f].max()) for f in actual] == pytest.approx([1.0, 1 / v, 1.0])
        widths = [float((actual[f] > 0).double().sum()) * 1e-3 for f in actual]
        assert widths == pytest.approx([1.0, v, v], abs=5e-3)


def test_the_share_inside_a_window_that_follows_v_is_that_of_every_v():
    """Points on a window's edge were counted as inside, the more the smaller V: 42 and 41 %."""
    shares = {
        (v, family): share
        for v, family, _, share in simulations.windows(Work(Scale("mini"), 1, Store(None))).tables[0].rows
    }
    assert shares == {("0.2", "AS-SG"): "100", ("2", "AS-SG"): "20"} | {
        (v, f): "41" for v in ("0.2", "2") for f in ("RS-SG", "TrSG")
    }
