"""What is measured inside networks: distributions per step, the shift report, gradients per step."""

import copy
import re
from functools import partial

import pytest
import torch
from torch import nn

import steadyspike as ss
from steadyspike import models
from steadyspike.analysis.networks.observe import observe
from steadyspike.analysis.networks.shift import analyse, report_of
from steadyspike.nn.initial_potential import LearnedInit
from steadyspike.paper.statistics.gradient_flow import (
    gradient_metrics,
    mean_cross_entropy,
    step_cosines,
    weights_before,
)
from steadyspike.paper.statistics.other_starts import (
    KINDS,
    ChannelInit,
    QuantileInit,
    SampledInit,
    final_potentials,
    starting,
)


class Layer(nn.Module):
    """One neuron layer with a current of our own: forward(x) -> x through LIF."""

    def __init__(self, **options):
        super().__init__()
        self.lif = ss.LIF(**options)

    def forward(self, x):
        return self.lif(x)


def currents(steps=4, seed=0):
    return torch.randn(steps, 64, 300, generator=torch.Generator().manual_seed(seed)) * 1.5 + 0.5


def net():
    torch.manual_seed(0)
    shape = {"in_channels": 1, "num_classes": 4, "image_size": (8, 8)}
    return models.create("cnn7_tiny", timesteps=3, dropout=0.0, neuron=partial(ss.LIF, threshold=0.3), **shape)


@pytest.fixture(scope="module")
def batch():
    generator = torch.Generator().manual_seed(1)
    return torch.randn(16, 1, 8, 8, generator=generator) * 2, torch.randint(0, 4, (16,), generator=generator)


def test_observation_equals_what_a_probe_records():
    model, x = Layer(threshold=0.8, init=0.1), currents()
    seen = observe(model, [x]).layers["lif"]
    with ss.probe(model) as record:
        model(x)
    record = record["lif"]
    active = record.spikes.bool().any(0)
    torch.testing.assert_close(seen.rates, record.rate.double())
    assert seen.active == int(active.sum()) and seen.neurons == active.numel()
    inside = (record.u.abs() <= 0.8)[:, active].double().mean(1)
    torch.testing.assert_close(seen.bounded[0], inside, atol=1e-4, rtol=0)
    assert seen.membrane.sum((0, 2)).tolist() == [int(active.sum())] * 4
    twice = observe(model, [x, x]).layers["lif"]
    torch.testing.assert_close(twice.membrane_shares, seen.membrane_shares)


@pytest.mark.parametrize("size", [1, 3, 50, 100])
def test_the_size_of_the_batches_changes_nothing(size):
    """Even and odd samples were those of each batch, and the bins of the input those of the first batch."""
    model = Layer(init="zero", tau=3.0)
    x = (currents(4, 3) * 0.5 + 1.0).repeat(1, 2, 1)[:, :100] * torch.linspace(0.5, 1.5, 100)[:, None]
    whole = observe(model, [x]).layers["lif"]
    parts = observe(model, x.split(size, 1)).layers["lif"]
    for name in ("membrane", "current", "current_edges", "spikes", "inside"):
        assert torch.equal(getattr(parts, name), getattr(whole, name)), name
    one, other = analyse(model, iter(x.split(size, 1))), analyse(model, x)
    assert str(one) == str(other) and one.layers[0].floor < 0.1


def test_a_layer_that_runs_twice_has_the_same_halves_in_batches_of_every_size():
    class Twice(Layer):
        def forward(self, x):
            return self.lif(self.lif(x) + x)

    model, x = Twice(init="zero"), currents()
    whole, parts = (observe(model, x.split(size, 1)).layers["lif"] for size in (64, 1))
    assert torch.equal(parts.membrane, whole.membrane)


def test_independence_of_inputs_is_tested():
    model = Layer(init="zero")
    free = observe(model, [currents(10)], independence=True).layers["lif"]
    tied = observe(model, [currents(10).cumsum(0)], independence=True).layers["lif"]
    assert 0.9 < free.independence < 0.98 and tied.independence < 0.8
    same = observe(model, [currents(1).expand(10, -1, -1).contiguous()], independence=True).layers["lif"]
    assert same.tested == 0 and same.constant > 0


def test_a_start_at_zero_drifts_and_a_start_at_the_mean_does_not():
    def slow(seed):  # a slow membrane: it takes a few steps to leave 0
        return currents(10, seed) * 0.5 + 1.0

    x = slow(0)
    zero, mean = Layer(init="zero", tau=3.0), Layer(init="mp", tau=3.0)
    mean.train()
    for seed in range(60):
        mean(slow(seed))
    before = copy.deepcopy(mean.state_dict())
    drifting, steady = analyse(zero, x), analyse(mean, x)
    assert drifting.shift > 2 * steady.shift and drifting.verdict.startswith("drifts")
    assert "init='mp'" in drifting.advice and "lif" in str(drifting)
    assert all(torch.equal(a, b) for a, b in zip(before.values(), mean.state_dict().values()))
    assert mean.training  # the mode returns
    assert float(drifting.layers[0].membrane[-1]) == 0


def test_a_report_says_when_it_cannot_tell(batch):
    few = analyse(Layer(), currents(3)[:, :4, :8])
    assert few.verdict == "unclear" and "more samples" in few.advice
    silent = analyse(Layer(threshold=1e3), currents(3))
    assert silent.verdict == "silent" and "nothing to judge" in silent.advice and "steady" not in str(silent)
    with pytest.raises(ValueError, match="2 time steps"):
        analyse(Layer(), currents(1))
    with pytest.raises(ValueError, match="nothing to analyse"):
        report_of(observe(nn.Linear(2, 2), [torch.zeros(2, 2)]), False)


def test_networks_take_pairs_iterables_and_other_lengths(batch):
    model = net()
    model.train()
    model(batch[0])
    one = analyse(model, batch)
    assert one.samples == 16 and 0 <= one.agreement <= 1 and len(one.layers) == 5
    several = analyse(model, [batch, batch], timesteps=5)
    assert several.samples == 32 and len(several.layers[0].rates) == 5
    assert [layer.name for layer in analyse(model, batch, layers="body.1*").layers] == ["body.1.lif"]


def test_gradient_metrics_are_those_of_the_loss(batch):
    model = net()
    x, y = batch
    before = copy.deepcopy(model.state_dict())
    rows = gradient_metrics(model, x, y)
    assert all(torch.equal(a, b) for a, b in zip(before.values(), model.state_dict().values()))
    assert all(p.grad is None for p in model.parameters())
    model.train()
    with ss.probe(model, record="m") as seen:
        mean_cross_entropy(model(x), y).backward()
    assert [row.layer for row in rows] == list(weights_before(model))
    for row in rows:
        gradient = weights_before(model)[row.layer][1].weight.grad.double().abs()
        assert row.absolute == pytest.approx(float(gradient.mean()), rel=1e-4)
        assert row.variation == pytest.approx(float(gradient.std(unbiased=False) / gradient.mean()), rel=1e-4)
        m = seen[row.layer].m
        assert row.ratio == pytest.approx(float(((m / 0.3 - 1).abs() < 0.5).double().mean()), abs=1e-3)


def test_cosines_of_both_definitions(batch):
    model = net()
    x, y = batch
    name = list(weights_before(model).values())[1][0]
    for definition in ("contribution", "step loss"):
        matrix = step_cosines(model, name, x, y, definition)
        assert matrix.shape == (3, 3)
        torch.testing.assert_close(matrix.diagonal(), torch.ones(3, dtype=torch.float64))
    assert not torch.allclose(step_cosines(model, name, x, y), matrix)
    first = next(iter(weights_before(model).values()))[0]
    with pytest.raises(ValueError, match="once for all time steps"):
        step_cosines(model, first, x, y)
    with pytest.raises(ValueError, match="unknown definition"):
        step_cosines(model, name, x, y, "both")


def test_other_starts_take_the_place_of_the_layer_s_own_for_a_while(batch):
    model = net()
    model.train()
    for _ in range(5):
        model(batch[0])
    model.eval()
    reference = final_potentials(model, [batch[0]])
    with torch.no_grad():
        before = model(batch[0])
        with starting(model, "zero", reference), ss.probe(model, record=("m", "current")) as seen:
            model(batch[0])
        first = seen["stem.lif"]
        torch.testing.assert_close(first.m[0], first.current[0] / 2)  # tau = 2, U[0] = 0
        for kind in KINDS[1:]:
            with starting(model, kind, reference):
                assert model(batch[0]).isfinite().all()
        assert torch.equal(model(batch[0]), before)
    with pytest.raises(ValueError, match="unknown start"), starting(model, "one", reference):
        pass


def test_estimated_starts_have_the_distribution_they_were_estimated_from():
    layer = Layer(threshold=0.8, init=0.1)
    x = currents(5)
    reference = final_potentials(layer, [x])["lif"]
    with ss.probe(layer) as seen:
        layer(x)
    record = seen["lif"]
    u = record.u[-1][record.spikes.bool().any(0)].double()
    assert reference.mean == pytest.approx(float(u.mean()))
    for start in (SampledInit(reference.quantiles), QuantileInit(reference.quantiles)):
        drawn = start.potential(x).double()
        assert drawn.shape == x.shape[1:]
        assert float(drawn.mean()) == pytest.approx(reference.mean, abs=0.02)
        assert float(drawn.std()) == pytest.approx(float(u.std()), rel=0.05)
    matched = QuantileInit(reference.quantiles).potential(x)
    assert matched[0][x[0, 0].argmax()] == matched[0].max()
    assert ChannelInit(reference.channels).potential(x)[:, 3].unique().numel() == 1


class Small(nn.Module):
    """[T, B, 10] in; ``average``: returns [B, 3] like networks that average over time."""

    def __init__(self, average=False):
        super().__init__()
        self.first, self.lif, self.last, self.average = nn.Linear(10, 32), ss.LIF(), nn.Linear(32, 3), average

    def forward(self, x):
        out = self.last(self.lif(self.first(x)))
        return out.mean(0) if self.average else out


def test_a_network_that_averages_over_time_is_counted_by_its_samples():
    """The classes were counted as samples, and a smaller last batch was an error."""
    x = 3 * torch.randn(4, 8, 10)
    report = ss.analyse(Small(average=True), [(x, torch.zeros(8)), (x[:, :5], torch.zeros(5))])
    assert report.samples == 13 and report.agreement is None
    assert ss.analyse(Small(), [(x, None), (x[:, :5], None)]).samples == 13
    assert ss.analyse(Small(), [x, x[:, :5], x]).samples == ss.analyse(Small(), iter([x, x[:, :5], x])).samples == 21
    assert ss.analyse(Small(), (x, torch.zeros(8))).samples == 8


class Still(nn.Module):
    """[B, 10] in, shown for four steps."""

    def __init__(self):
        super().__init__()
        self.net = Small()

    def forward(self, x):
        return self.net(x.expand(4, *x.shape))


@pytest.mark.parametrize("kind", [tuple, list])
@pytest.mark.parametrize(
    "targets",
    [torch.rand(16, 3), torch.rand(16, 10), torch.zeros(16).long(), [0, 1] * 8, [{"boxes": 1}] * 16, None],
    ids=["of other features", "of the input's shape", "classes", "a list", "boxes", "none"],
)
def test_the_first_of_two_is_the_input_whatever_the_targets_are(kind, targets):
    """Targets with as many axes as the input were run through the network."""
    torch.manual_seed(0)
    model, x = Still(), 3 * torch.randn(16, 10)
    one = ss.analyse(model, kind((x, targets)))
    assert one.samples == 16 and str(one) == str(ss.analyse(model, x))
    assert ss.analyse(model, [kind((x, targets))] * 2).samples == 32
    assert ss.analyse(model, kind((x,))).samples == ss.analyse(model, [kind((x,))]).samples == 16


def test_values_that_are_not_finite_are_no_silence():
    x = 3 * torch.randn(4, 8, 10)
    broken = Small()
    nn.init.constant_(broken.first.weight, float("nan"))
    report = ss.analyse(broken, x)
    assert report.verdict == "unclear" and "NaN" in report.advice and "'lif'" in report.advice
    assert report.agreement is None and "NaN or infinite" in str(report)
    last = Small()
    nn.init.constant_(last.last.weight, float("nan"))
    assert ss.analyse(last, x).agreement is None


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize(
    ("what", "text"),
    [
        ("running_mean", "initial potential"),
        ("threshold", "threshold|parameter"),
        ("tau", "leak|parameter"),
        ("imp", "initial"),
    ],
)
def test_a_layer_whose_own_values_are_not_finite_is_the_one_that_is_named(what, text, value):
    """It was called silent or saturated, or the layer after it was blamed."""
    init = LearnedInit((10,)) if what == "imp" else "mp"
    model = nn.Sequential(ss.LIF(), ss.LIF(init=init, learn=("threshold", "tau")), ss.LIF())
    broken = model[1]
    location = {
        "running_mean": lambda: broken.running_mean,
        "imp": lambda: next(broken.init.parameters()),
        "threshold": lambda: broken.constant_parameter("threshold"),
        "tau": lambda: broken.constant_parameter("leak"),
    }[what]()
    with torch.no_grad():
        location.fill_(value)
    report = ss.analyse(model, 1 + torch.randn(4, 64, 10))
    assert [row.finite for row in report.layers][:2] == [True, False]
    assert re.search(text, report.layers[1].broken) and not report.layers[1].judged
    assert report.verdict == "unclear" and "layer '1' is NaN or infinite" in report.advice
    assert re.search(r"^1 +its .* is NaN or infinite$", str(report), re.M)


def test_silent_layers_are_said_and_no_verdict_rests_on_the_few_that_fire():
    model = nn.Sequential(ss.LIF(init="zero", tau=3.0), *(ss.LIF(threshold=1e3) for _ in range(2)))
    x = 1 + 0.5 * torch.randn(10, 200, 20)
    report = ss.analyse(model, x)
    assert report.verdict == "unclear" and "2 of 3 layers in which no neuron fired" in report.advice
    rows = str(report).splitlines()
    assert all("silent" in row for row in rows[1:3]) and rows[3].startswith("0 ") and "shift: distance" in rows[5]
    report = ss.analyse(model[:2], x)
    assert report.verdict.startswith("drifts") and "Not counted: 1 of 2 layers" in report.advice


def test_a_network_in_which_every_neuron_fires_at_every_step_is_not_steady():
    x = 50 + 0.5 * torch.randn(6, 200, 20)
    full = ss.LIF(init="zero", threshold=0.1)
    report = ss.analyse(full, x)
    assert report.layers[0].rates.eq(1).all() and report.verdict == "saturated"
    assert "nothing to judge over 0 of 1 layer, " in str(report) and "steady" not in str(report)
    # One such layer is left out; if most are such, there is no verdict.
    model = nn.Sequential(ss.LIF(threshold=1e-3, init="zero"), ss.LIF(init="zero", tau=3.0, threshold=7e-4))
    currents = 1 + 0.5 * torch.randn(10, 200, 20).clamp(-1.5, 1.5)
    mixed = ss.analyse(model, currents)
    assert [row.saturated for row in mixed.layers] == [True, False], str(mixed)
    assert mixed.layers[1].judged and "Not counted: 1 of 2 layers in which every neuron fires" in mixed.advice
    dead = nn.Sequential(ss.LIF(threshold=1e-3, init="zero"), ss.LIF(threshold=1e3))
    assert ss.analyse(dead, currents).verdict == "unclear"


def test_a_mean_that_no_training_has_moved_is_a_start_at_zero():
    x = 1 + 0.5 * torch.randn(10, 200, 20)
    layer = ss.LIF(tau=3.0)
    assert "mean is still 0" in ss.analyse(layer, x).advice
    layer.running_mean.fill_(0.01)
    report = ss.analyse(layer, x)
    assert report.verdict.startswith("drifts") and "still drifts" in report.advice


@pytest.mark.parametrize(
    ("batch", "text"),
    [
        ([], "no batch was given"),
        (torch.zeros(4, 0, 10), "has no samples"),
        ([(torch.zeros(4, 2, 10), None), (torch.zeros(3, 2, 10), None)], "different numbers of time steps: 4 and 3"),
        ([torch.zeros(4, 2, 10), torch.zeros(3, 2, 10)], r"for two inputs write \[\(x, None\), \(y, None\)\]"),
        (torch.zeros(1, 2, 10), "a whole sequence at once"),
        ([{"x": 1}], "got dict"),
        ((torch.zeros(4, 2, 10), torch.zeros(2), torch.zeros(2)), "got 3 parts"),
        ([torch.zeros(4, 2, 10), torch.zeros(2), torch.zeros(2)], "got 3 parts"),
        ([(torch.zeros(4, 2, 10), torch.zeros(2), torch.zeros(2))], "got 3 parts"),
        (None, "got NoneType"),
    ],
)
def test_what_cannot_be_analysed_is_one_line(batch, text):
    with pytest.raises((TypeError, ValueError), match=text):
        ss.analyse(Small(), batch)
    with pytest.raises(ValueError, match=r"no spiking neuron layer that ran .*ss.convert"):
        ss.analyse(nn.Flatten(), torch.zeros(4, 2, 10))
    with pytest.raises(ValueError, match="takes the input only"):
        ss.analyse(Small(), torch.zeros(4, 2, 10), timesteps=6)
