"""The predictor of a step on a GPU: published times it was fitted on, published times it was not, and its counting."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import nn

import steadyspike as ss
from steadyspike.analysis.gpu.cards import CARDS, card
from steadyspike.analysis.gpu.plan import plan
from steadyspike.analysis.gpu.step_costs import StepCosts, step_costs
from steadyspike.analysis.gpu.step_time import BANDWIDTH_SHARE, FLOP_SHARE, step_time
from steadyspike.models import model_registry
from steadyspike.nn.time import Folded
from steadyspike.train import load_recipe
from steadyspike.train.recipe import RecipeError

# Published for an RTX 4090 in milliseconds. LIF: SpikingJelly's Triton kernel, fp16, 4.19 million neurons, forward and
# backward. SEW-ResNet-18 of SpikingJelly: T = 4, 224 pixels, bf16, batch 112 (its pull requests 740 and 753).
LIF_16, LIF_32 = 1.70, 3.37
CONVOLUTIONS, LIF_SHARE, EVALUATION, STEP, STEP_GIB = 18.9, 4.3, 38.1, 129.0, 8.0
NEURONS = 4.19e6


def lif(steps: int) -> StepCosts:
    return StepCosts(neurons=int(NEURONS * steps))


@pytest.fixture(scope="module")
def sew18() -> StepCosts:
    """SEW-ResNet-18 as SpikingJelly runs it: the stem computes every step of the repeated image."""
    with torch.device("meta"):
        model = ss.models.create("sew_resnet34", num_classes=1000, timesteps=4, layers=(2, 2, 2, 2))
    return step_costs(model, torch.empty(4, 112, 3, 224, 224, device="meta"))


def milliseconds(costs: StepCosts, **options: object) -> dict[str, float]:
    time = step_time(costs, card("4090"), "bf16", neuron="spikingjelly", **options)  # type: ignore[arg-type]
    return {name: getattr(time, name) * 1e3 for name in ("synapses", "neurons", "total")}


def test_the_constants_are_fitted_on_half_of_the_published_times(sew18):
    """Bandwidth on two times of the neuron (the geometric mean), operations on the convolutions of an evaluation."""
    one = milliseconds(lif(16))["neurons"] / LIF_16
    other = milliseconds(sew18, training=False)["neurons"] / LIF_SHARE
    assert BANDWIDTH_SHARE * math.sqrt(one * other) == pytest.approx(BANDWIDTH_SHARE, rel=0.01)
    implied = sew18.flops / (CONVOLUTIONS * 1e-3) / (card("4090").half * 1e12)
    assert round(implied, 2) == FLOP_SHARE


def test_the_other_half_is_reproduced_within_a_fifth(sew18):
    assert milliseconds(lif(32))["neurons"] == pytest.approx(LIF_32, rel=0.2)
    assert milliseconds(sew18, training=False)["total"] == pytest.approx(EVALUATION, rel=0.2)
    assert milliseconds(sew18)["total"] == pytest.approx(STEP, rel=0.2)
    memory = step_time(sew18, card("4090"), "bf16", neuron="spikingjelly").memory
    assert memory / 2**30 == pytest.approx(STEP_GIB, rel=0.2)


def test_counts_of_a_small_network_by_hand():
    model = nn.Sequential(
        Folded(nn.Sequential(nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8))),
        ss.LIF(),
        Folded(nn.Conv2d(8, 16, 3, stride=2, padding=1, groups=2, bias=False)),
    )
    costs = step_costs(model, torch.empty(2, 5, 3, 32, 32))
    images, pixels = 10, 32 * 32
    assert costs.flops == 2 * images * (8 * pixels * 27 + 16 * pixels / 4 * 36)
    assert costs.neurons == costs.norms == images * 8 * pixels
    assert costs.synapse_in == images * (3 + 8) * pixels
    assert costs.parameters == 8 * 27 + 16 + 16 * 36 + 2


def fused(name: str) -> tuple[float, float]:
    """The share of a network's norms, and of its neurons, that are one with the other."""
    with torch.device("meta"):
        model = ss.models.create(name, timesteps=4)
    costs = step_costs(model, torch.empty(4, 2, 3, *model_registry.entry(name).image_size))
    return costs.fused_norms / costs.norms, costs.fused_neurons / costs.neurons


def test_norms_that_are_one_with_their_neuron():
    """ResNet-19: all of them. MS-ResNet adds the outputs of norms to a stream that more than one layer reads."""
    assert fused("resnet19") == (1.0, 1.0)
    norms, neurons = fused("ms_resnet18")
    assert 0 < norms < 1 and 0 < neurons < 1


def test_a_fused_norm_takes_less_time_and_keeps_no_current():
    apart = StepCosts(norms=10**9, neurons=10**9)
    one = StepCosts(norms=10**9, neurons=10**9, fused_norms=10**9, fused_neurons=10**9)
    before, after = (step_time(costs, card("4090")) for costs in (apart, one))
    # 27 and 19 bytes per element; docs/kernels-gpu.md
    assert (after.neurons + after.norms) / (before.neurons + before.norms) == pytest.approx(19 / 27)
    assert before.memory - after.memory == 2 * 10**9


def test_a_neuron_is_one_operation_whatever_it_does_inside():
    steps = [step_costs(nn.Sequential(ss.LIF()), torch.empty(t, 4, 64)).operations for t in (2, 8)]
    assert steps == [1, 1]


def test_a_recipe_of_the_paper():
    recipe = load_recipe("cifar100-resnet19-t4")
    one, two = plan(recipe, "4090"), plan(recipe, "4090", cards=2)
    assert one.fits and one.hours is not None and two.hours is not None
    assert two.batch == one.batch // 2 and two.hours < one.hours
    at_the_limit = plan(recipe, "4090", batch=one.largest_batch)
    assert at_the_limit.fits
    assert at_the_limit.step.memory == pytest.approx(0.92 * one.card.memory * 1e9, rel=0.02)


def test_a_batch_that_does_not_fit_is_split():
    recipe = load_recipe("dvs-cifar10-resnet19-t10")
    tight = plan(recipe, "4090", batch=2 * plan(recipe, "4090").largest_batch)
    assert tight.samples == 9000 and not tight.fits and tight.passes == 2
    assert "accumulate 2 passes" in str(tight) and "not included" in str(tight)


def test_a_batch_that_cannot_be_divided_is_an_error_as_in_training():
    with pytest.raises(RecipeError, match="64 must be a multiple of 3"):
        plan(load_recipe("cifar100-resnet19-t4"), "4090", cards=3)


def test_a_recipe_that_accumulates_has_smaller_passes():
    whole, split = (plan(load_recipe("tiny", [f"train.accumulate={n}"]), "a100") for n in (1, 4))
    assert split.batch == whole.batch // 4 and split.passes == 4 and split.step.memory < whole.step.memory
    assert "each of 4 passes of a step: " in str(split)
    assert whole.hours is not None and split.hours is not None and split.hours > whole.hours  # more launches


def test_a_network_of_which_no_sample_fits(monkeypatch):
    monkeypatch.setitem(CARDS, "3090", replace(card("3090"), memory=0.1))
    huge = plan(load_recipe("cifar100-resnet19-t4"), "3090")
    assert huge.largest_batch == 0 and huge.hours is None and "not even one sample fits" in str(huge)


def test_small_predictions_are_not_shown_as_zero():
    shown = str(plan(load_recipe("tiny"), "h100"))
    step = next(line for line in shown.splitlines() if line.startswith("step:"))
    assert "step: 0." in step and "(0 to" not in step and " 0.0 h" not in shown
    assert "e-0" not in shown and "GFLOP" in step


def test_faster_cards_take_less_time(sew18):
    times = {name: step_time(sew18, one).total for name, one in CARDS.items()}
    assert times["h100"] < times["a100"] < times["a100-40"] < times["4090"] < times["3090"]


def test_an_unknown_card_names_the_known_ones():
    assert card("A100") is CARDS["a100"]
    with pytest.raises(ValueError, match="4090"):
        card("4070")
