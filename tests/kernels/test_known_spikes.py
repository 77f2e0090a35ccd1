"""The scan's bits are found again on its output and on every view of it, and only as long as they are right."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from torch import Tensor

import steadyspike as ss
from steadyspike.kernels.scan.cpu.spike_words import SpikeWords
from steadyspike.kernels.spikes.note import find_spikes, known_spikes, spikes_per_step
from steadyspike.kernels.spikes.packed import pack_spikes
from steadyspike.nn.neuron import Tap
from tests.kernels.built import needs_kernel

pytestmark = needs_kernel


def output(layer: ss.LIF | None = None, dtype: torch.dtype = torch.float32, last: bool = False) -> Tensor:
    x = torch.randn(4, 4, 8, 8, 8, generator=torch.Generator().manual_seed(0)).mul_(2).to(dtype)
    if last:
        x = x.flatten(0, 1).to(memory_format=torch.channels_last).unflatten(0, (4, 4))
    return (layer or ss.LIF())(x)


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("channels", [None, 8])
@pytest.mark.parametrize("gradient", ["trsg", "rs"])
@pytest.mark.parametrize("training", [True, False])
def test_they_are_those_of_the_values(
    last: bool, dtype: torch.dtype, channels: int | None, gradient: str, training: bool
) -> None:
    threshold = 0.7 if channels is None else torch.linspace(0.4, 1.1, 8).tolist()
    layer = ss.LIF(threshold, gradient=gradient, channels=channels).train(training)
    with torch.set_grad_enabled(training):
        out = output(layer, dtype, last)
    for x in (out, out.flatten(0, 1)[None], out.view(2, 8, *out.shape[2:]) if not last else out):
        reference = known_spikes(x)
        assert reference is not None and 0.01 < reference.rate < 0.9
        looked = pack_spikes(x, reference.level)
        assert looked is not None and torch.equal(looked.words, reference.words)
        assert torch.equal(reference.counts, looked.counts) and torch.equal(reference.unpack(), x)


def test_changes_are_seen() -> None:
    for change in (
        lambda x: x.mul_(2),
        lambda x: x.data.mul_(2),
        lambda x: x.numpy().__imul__(3),
        lambda x: x.flatten().neg_(),
        lambda x: x.data.copy_(x.roll(1, 0)),
    ):
        with torch.no_grad():
            out = output()
            assert known_spikes(out) is not None
            change(out)
            assert known_spikes(out) is None
            actual = find_spikes(out)
            assert actual is None or torch.equal(actual.unpack(), out)


def test_parts_and_other_orders_have_none() -> None:
    out = output()
    assert known_spikes(out[1:]) is None and known_spikes(out[:2]) is None
    assert known_spikes(out.transpose(0, 1)) is None and known_spikes(out.clone()) is None
    assert known_spikes(out.transpose(3, 4)) is not None  # the same elements in the same memory
    assert known_spikes(output(dtype=torch.bfloat16).view(torch.float16)) is None


def test_nan_other_thresholds_and_inference_are_looked_at() -> None:
    x = torch.randn(4, 4, 8, 8, 8)
    x[1, 2, 3, 4, 5] = float("nan")
    assert known_spikes(ss.LIF()(x)) is None
    with torch.inference_mode():
        out = output()
        assert known_spikes(out) is None and find_spikes(out) is not None
    assert known_spikes(ss.LIF()(torch.randn(3, 2, 2000))) is None  # not whole words


def test_they_are_freed_with_the_output() -> None:
    out = output()
    spikes = known_spikes(out)
    assert spikes is not None
    words = weakref.ref(spikes.words.untyped_storage())
    del out, spikes
    gc.collect()
    assert words() is None


def test_needed_places_are_found_in_training_only(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []
    like = SpikeWords.like

    def counted(x: Tensor, needed: bool = False) -> SpikeWords:
        asked.append(needed)
        return like(x, needed)

    monkeypatch.setattr(SpikeWords, "like", counted)
    output()
    with torch.no_grad():
        output()
    output(ss.LIF(learn=False))  # nothing to train
    output(ss.LIF(surrogate="sigmoid"))  # needed everywhere
    assert asked == [True, False, False, False]


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_taps_get_the_number_that_the_scan_counted(mode: type, monkeypatch: pytest.MonkeyPatch) -> None:
    layer, seen = ss.LIF(), []
    layer.taps["counts"] = Tap(lambda layer, x, u0, result: seen.append((spikes_per_step(result.out), result.out)))
    looked: list[Tensor] = []
    count = Tensor.count_nonzero
    monkeypatch.setattr(Tensor, "count_nonzero", lambda x, *axes: (looked.append(x), count(x, *axes))[1])
    with mode():
        output(layer)
        assert not looked
        layer(torch.full((3, 2, 5), 4.0))  # no whole words: counted
        assert len(looked) == 1
    for counts, out in seen:
        assert torch.equal(counts, (out != 0).flatten(1).sum(1)) and counts.sum() > 0


def test_an_output_that_was_changed_is_counted() -> None:
    with torch.no_grad():
        out = output()
        before = spikes_per_step(out).clone()
        out[0] = 0
        assert before[0] > 0 and spikes_per_step(out).tolist() == [0, *before[1:].tolist()]
        assert spikes_per_step(out.flatten(0, 1)).shape == (16,)
