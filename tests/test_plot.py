"""`ss.plot`: what is drawn is what the probe recorded."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import steadyspike as ss

plt = pytest.importorskip("matplotlib.pyplot", reason="matplotlib is not installed")


@pytest.fixture(autouse=True)
def closed():
    with plt.rc_context({"backend": "agg"}):
        yield
    plt.close("all")


@pytest.fixture
def seen():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 5), ss.LIF(threshold=0.3), nn.Linear(5, 4), ss.LIF(threshold=0.05), ss.Readout())
    with ss.probe(model) as recording:
        model(5 * torch.randn(7, 3, 6))
    return recording


def dots(axis):
    return {tuple(round(float(v)) for v in point) for point in axis.collections[0].get_offsets()}


def test_raster_shows_every_spike_of_the_sample(seen):
    axes = ss.plot.raster(seen, sample=2)
    assert [axis.get_title(loc="left") for axis in axes] == ["1", "3"]  # the readout does not spike
    for axis, name in zip(axes, ("1", "3")):
        spikes = seen[name].spikes[:, 2]
        assert 0 < spikes.sum() < spikes.numel()
        assert dots(axis) == {(t + 1, n) for t, n in spikes.nonzero().tolist()}


def test_raster_of_a_tensor_into_given_axes_and_of_some_neurons():
    spikes = torch.ones(4, 2, 3, 10, 10)
    _, axis = plt.subplots()
    assert ss.plot.raster(spikes, neurons=5, ax=axis) is axis
    assert {n for _, n in dots(axis)} == {0, 75, 150, 224, 299} and {t for t, _ in dots(axis)} == {1, 2, 3, 4}
    assert "5 of 300" in axis.get_ylabel()


def test_traces_show_membrane_threshold_and_spikes(seen):
    record = seen["1"]
    axis = ss.plot.traces(record, sample=1, neurons=[3])
    membrane, fired, threshold = axis.lines
    assert torch.allclose(torch.tensor(membrane.get_ydata()), record.m[:, 1, 3])
    assert [int(t) - 1 for t in fired.get_xdata()] == record.spikes[:, 1, 3].nonzero().flatten().tolist()
    assert threshold.get_ydata()[0] == pytest.approx(0.3)


def test_traces_take_a_threshold_per_channel_and_the_busiest_neurons():
    layer = ss.LIF(threshold=[0.2, 0.9], channels=2)
    with ss.probe(layer) as seen:
        layer(torch.tensor([0.5, 0.3]).reshape(1, 1, 2, 1).expand(8, 1, 2, 3))
    axis = ss.plot.traces(seen[""], neurons=1)
    assert axis.lines[0].get_label() == "neuron 0" and axis.lines[2].get_ydata()[0] == pytest.approx(0.2)
    assert ss.plot.traces(seen[""], neurons=[5]).lines[2].get_ydata()[0] == pytest.approx(0.9)


def test_a_readout_has_a_trace_without_threshold(seen):
    assert len(ss.plot.traces(seen["4"], neurons=[0]).lines) == 2


def test_rates_are_those_of_the_recording(seen):
    axis = ss.plot.rates(seen)
    assert [line.get_label() for line in axis.lines] == ["1", "3"]
    assert torch.allclose(torch.tensor(axis.lines[1].get_ydata()), seen["3"].rate)


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (lambda seen: ss.plot.raster(seen, sample=3), "sample 3 is not in the batch, which has 3"),
        (lambda seen: ss.plot.raster(torch.ones(4, 2)), r"must have the shape \[T, B, ...\], got \[4, 2\]"),
        (lambda seen: ss.plot.raster(seen["4"]), "holds no spikes"),
        (lambda seen: ss.plot.raster(seen, ax=plt.subplots()[1]), "ax is for one layer"),
    ],
)
def test_mistakes_are_named(seen, draw, message):
    with pytest.raises((ValueError, IndexError), match=message):
        draw(seen)


def test_a_recording_without_what_is_drawn():
    layer = ss.LIF()
    with ss.probe(layer, record="current") as seen:
        layer(torch.ones(2, 2, 3))
    for draw in (ss.plot.raster, ss.plot.rates, lambda recording: ss.plot.traces(recording[""])):
        with pytest.raises(ValueError, match="holds no"):
            draw(seen)


def test_traces_of_a_whole_recording_ask_for_one_layer(seen):
    with pytest.raises(TypeError, match=r"one layer, got the recording of .*; use recording\[name\]"):
        ss.plot.traces(seen)
