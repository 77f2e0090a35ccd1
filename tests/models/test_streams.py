"""Residual streams of spikes: their writers, and one threshold for all of them."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch

import steadyspike as ss
from steadyspike import models
from steadyspike.models.blocks.sew import SEWBlock
from steadyspike.models.streams import tie_thresholds
from steadyspike.nn.neuron import neurons
from steadyspike.nn.neurons import NEURONS, RateLIF
from steadyspike.paper.statistics.overhead import overhead, total
from tests.models.members import TINY, images, member, one_step

SEW = ["sew_resnet34_tiny", "sew_dvs_tiny"]


def writers(model: models.SpikingNet) -> list[list[torch.nn.Parameter]]:
    return [[model.get_parameter(f"{name}.k") for name in stream] for stream in model.streams]


@pytest.mark.parametrize(
    ("name", "sources"), [("sew_resnet34", [4, 5, 7, 4]), ("sew_dvs", [5, 4]), ("sew_dvs_tiny", [3, 2])]
)
def test_the_streams_of_sew_networks(name: str, sources: list[int]) -> None:
    with torch.device("meta"):
        model = models.create(name)
    assert [len(stream) for stream in model.streams] == sources
    assert model.streams[0][:2] == ["stem.lif", f"body.{'layer1.0' if 'resnet' in name else '0'}.branch2.lif"]
    assert all(name in neurons(model) for stream in model.streams for name in stream)


def test_no_other_family_sums_spikes() -> None:
    sums = (*SEW, "spikformer_tiny", "spikformer_v2_tiny", "qkformer_tiny")
    assert all(bool(member(name).streams) == (name in sums) for name in TINY)


@pytest.mark.parametrize("name", SEW)
def test_tied_thresholds_are_one_parameter(name: str) -> None:
    untied, tied = member(name), member(name, tie_stream_threshold=True)
    assert all(len({id(k) for k in stream}) == len(stream) for stream in writers(untied))
    for model in (tied, copy.deepcopy(tied)):
        assert all(len({id(k) for k in stream}) == 1 for stream in writers(model))
        assert len({id(stream[0]) for stream in writers(model)}) == len(model.streams)
    extra = sum(len(stream) - 1 for stream in tied.streams)
    assert len(list(untied.parameters())) - len(list(tied.parameters())) == extra
    grouped = [p for group in ss.parameter_groups(tied, 0.1) for p in group["params"]]
    assert len(grouped) == len({id(p) for p in grouped}) == len(list(tied.parameters()))
    assert not any(id(k) in {id(p) for p in ss.parameter_groups(tied, 0.1)[0]["params"]} for (k, *_) in writers(tied))


@pytest.mark.parametrize("name", SEW)
def test_tied_stream_is_a_count_times_the_threshold(name: str) -> None:
    model = member(name, tie_stream_threshold=True)
    for _ in range(2):
        one_step(model, images(name))
    for (k, *_), value in zip(writers(model), (0.4, -0.3, 0.2, 0.1)):
        torch.nn.init.constant_(k, value)
    blocks = [m for m in model.modules() if isinstance(m, SEWBlock)]
    seen: list[tuple[torch.Tensor, torch.Tensor]] = []
    for block in blocks:
        block.register_forward_hook(lambda m, args, out: seen.append((out, m.branch2.lif.threshold)))
    model(images(name))
    assert len(seen) == len(blocks)
    for out, v in seen:
        count = out / v
        torch.testing.assert_close(count, count.round(), rtol=0, atol=1e-5)


def test_tied_state_dict_loads_into_an_untied_network_and_back() -> None:
    name = "sew_dvs_tiny"
    tied, untied = member(name, tie_stream_threshold=True), member(name)
    one_step(tied, images(name))
    untied.load_state_dict(tied.state_dict())
    assert torch.equal(untied.eval()(images(name)), tied.eval()(images(name)))
    again = member(name, tie_stream_threshold=True)
    again.load_state_dict(untied.state_dict())
    assert torch.equal(again.eval()(images(name)), tied(images(name)))


def test_what_cannot_be_tied_says_so() -> None:
    with pytest.raises(ValueError, match="the threshold of Linear cannot be tied: it has no threshold_name"):
        tie_thresholds([torch.nn.Linear(2, 2)])
    with pytest.raises(ValueError, match=r"fixed thresholds .* cannot be tied"):
        tie_thresholds([RateLIF(threshold=0.5), RateLIF(threshold=1.0)])
    with pytest.raises(ValueError, match=r"shapes \[1\] and \[4\] cannot be tied"):
        tie_thresholds([ss.LIF(), ss.LIF(channels=4)])


@pytest.mark.parametrize("neuron", [n for n in NEURONS if n != "readout"])
def test_every_neuron_can_be_tied(neuron: str) -> None:
    model = member("sew_dvs_tiny", neuron=neuron, tie_stream_threshold=True)
    model(images("sew_dvs_tiny")).square().mean().backward()
    for stream in model.streams:
        first, *others = [model.get_submodule(name) for name in stream]
        for layer in others:
            assert torch.equal(layer.threshold, first.threshold)
            if layer.threshold_name is not None:
                assert getattr(layer, layer.threshold_name) is getattr(first, first.threshold_name)


@pytest.mark.parametrize("assign", [False, True])
@pytest.mark.parametrize("wrapped", [False, True])
def test_loading_a_state_keeps_the_tie_or_refuses(assign: bool, wrapped: bool) -> None:
    name = "sew_dvs_tiny"
    tied, untied = member(name, tie_stream_threshold=True), member(name)
    one_step(tied, images(name))
    again = pickle.loads(pickle.dumps(copy.deepcopy(member(name, tie_stream_threshold=True))))
    into, source, other = (torch.nn.Sequential(m) if wrapped else m for m in (again, tied, untied))
    state = {key: value.clone() for key, value in source.state_dict().items()}
    into.load_state_dict(state, assign=assign)
    assert all(len({id(k) for k in stream}) == 1 for stream in writers(again))
    assert torch.equal(again.eval()(images(name)), tied.eval()(images(name)))
    torch.nn.init.constant_(untied.get_submodule(untied.streams[0][1]).k, 0.3)
    with pytest.raises(RuntimeError, match=r"stream stem.lif, .* differ in this state"):
        into.load_state_dict(other.state_dict(), assign=assign)


def test_tied_thresholds_count_once_as_overhead() -> None:
    untied, tied = (total(overhead(member("sew_dvs_tiny", tie_stream_threshold=tie))) for tie in (False, True))
    assert untied.parameters - tied.parameters == (3 - 1) + (2 - 1)
