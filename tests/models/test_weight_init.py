"""Weight initialisations by name, and layers that would never fire."""

from __future__ import annotations

import importlib.util
import math
import pathlib
from functools import partial

import pytest
import torch
from torch import nn

import steadyspike as ss
from steadyspike import models
from steadyspike.models.wake import wake
from steadyspike.models.weight_init import fire, initialise
from steadyspike.nn.model_check import check_model, firing_rates
from tests.models.members import images, member

ROOT = pathlib.Path(__file__).parents[2]


def conv_spread(model: nn.Module) -> list[tuple[float, float, float]]:
    """(std, fan_in, fan_out) of every larger convolution."""
    return [
        (m.weight.std().item(), m.weight[0].numel(), m.weight.shape[0] * m.weight[0][0].numel())
        for m in model.modules()
        if isinstance(m, nn.Conv2d) and m.weight.numel() > 2000
    ]


OFFICIAL = {
    "resnet19": "default",
    "cnn7": "kaiming_fan_out",
    "vggsnn": "kaiming_fan_out",
    "vgg9": "kaiming_fan_out",
    "resnet34": "imagenet",
    "sew_resnet34": "kaiming_fan_out",
    "sew_dvs": "default",
    "ms_resnet18": "default",
}


@pytest.mark.parametrize("name", OFFICIAL)
def test_each_network_starts_as_its_official_code(name: str) -> None:
    model = member(name, width=0.25)
    spreads = conv_spread(model)
    assert spreads
    for std, fan_in, fan_out in spreads:
        expected = 1 / math.sqrt(3 * fan_in) if OFFICIAL[name] == "default" else math.sqrt(2 / fan_out)
        assert abs(std / expected - 1) < 0.06
    if OFFICIAL[name] == "imagenet":
        assert abs(model.head.fc.weight.std().item() / 0.01 - 1) < 0.05 and not model.head.fc.bias.any()


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("spikformer_dvs", {"head"}),
        ("spikformer_cifar", {"head", "tokens"}),
        ("sdt_cifar_2_256", {"tokens", "images"}),
        ("spikingresformer_cifar", {"head", "tokens", "images"}),
    ],
)
def test_transformers_start_with_truncated_normals_where_their_code_does(name: str, expected: set[str]) -> None:
    actual = set()
    for m in member(name, width=0.25, image_size=32).modules():
        if isinstance(m, (nn.Conv2d, nn.Linear)) and m.weight.numel() > 500:
            kind = "head" if isinstance(m, nn.Linear) else "tokens" if m.kernel_size == (1, 1) else "images"
            spread = m.weight.std().item()
            truncated = abs(spread / 0.02 - 1) < 0.1 and m.weight.max().item() > 2.2 * spread  # a uniform ends at 1.73
            assert truncated == (kind in expected), (name, kind)
            actual |= {kind} if truncated else set()
    assert actual == expected


def test_init_is_an_option() -> None:
    wide = member("resnet19_tiny", width=0.25, init="kaiming_fan_out")
    assert all(abs(std / math.sqrt(2 / fan_out) - 1) < 0.06 for std, _, fan_out in conv_spread(wide))
    constant = member("resnet19_tiny", init=lambda model: nn.init.constant_(model.head.fc.bias, 3.0))
    assert torch.all(constant.head.fc.bias == 3)
    own = member("resnet19_tiny", head="tet", init=lambda model: nn.init.zeros_(model.head.fc1.weight))
    assert not own.head.fc1.weight.any()
    with pytest.raises(ValueError, match="unknown init 'xavier'; known: default, kaiming_fan_out, imagenet"):
        models.create("resnet19_tiny", init="xavier")


def test_zero_residual_silences_every_branch() -> None:
    for name in ("resnet19_tiny", "resnet34_tiny", "sew_dvs_tiny", "ms_resnet_tiny"):
        blocks = [m for m in member(name, zero_residual=True).modules() if hasattr(m, "last_norm")]
        assert blocks and all(not m.last_norm().weight.any() for m in blocks)
    assert member("resnet34_tiny").body.layer1[0].last_norm().weight.all()
    with pytest.raises(ValueError, match="needs a norm with a scale"):
        models.create("ms_resnet_tiny", norm="none")


@pytest.mark.parametrize(("name", "options"), [("resnet19_tiny", {"head": "tet"}), ("cnn7_tiny", {"spiking_fc": True})])
def test_a_spiking_fully_connected_layer_fires_and_learns(name: str, options: dict) -> None:
    model = member(name, **options)
    report = check_model(model, images(name, 6), batch_dim=0)
    assert report.ok, str(report)
    # The trap that the initialisation avoids: PyTorch's default.
    assert isinstance(model.head.fc1, nn.Linear)
    model.head.fc1.reset_parameters()
    report = check_model(model, images(name, 6), batch_dim=0)
    assert {c.layer for c in report.failures if c.name == "activity"} == {"head.lif"}


def test_fire_gives_currents_of_the_threshold() -> None:
    torch.manual_seed(0)
    x = 0.3 * torch.randn(500, 200)
    for layer in (nn.Linear(200, 100), nn.Linear(200, 100, bias=False)):
        fire(layer, threshold=0.5, mean_square=0.09)
        assert abs(layer(x).std().item() - 0.5) < 0.02


def test_initialise_leaves_other_models_alone() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), ss.LIF())
    before = model[0].weight.clone()
    initialise(model, "default")
    assert torch.equal(model[0].weight, before)


def test_wake_lowers_the_thresholds_of_silent_layers_only() -> None:
    name = "resnet34_tiny"
    model = member(name, norm="none")
    before = {k: v.clone() for k, v in model.state_dict().items()}
    changed = wake(model, images(name), rate=0.1)
    assert changed and all(0 < v < 1 for v in changed.values())
    after = model.state_dict()
    assert {k for k in after if not torch.equal(after[k], before[k])} == {f"{layer}.k" for layer in changed}
    assert all(0.005 < rate < 0.5 for rate in firing_rates(model.train(), images(name)).values())
    assert wake(model, images(name)) == {}


def test_wake_gives_up_where_nothing_pushes() -> None:
    model = nn.Sequential(nn.Linear(4, 4), ss.LIF())
    nn.init.constant_(model[0].bias, -9.0)
    with pytest.raises(RuntimeError, match="layer '1' cannot be woken"):
        wake(model, torch.zeros(2, 3, 4))
    with pytest.raises(ValueError, match="rate must be between 0 and 1"):
        wake(model, torch.zeros(2, 3, 4), rate=0.0)


def test_wake_and_tied_thresholds() -> None:
    name = "sew_dvs_tiny"
    model = member(name, norm="none", tie_stream_threshold=True)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    with pytest.raises(RuntimeError, match=r"tied threshold of .* is lowered, because the values in its stream"):
        wake(model, images(name))
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    # Spikes that are not scaled by V do not shrink with it.
    binary = member(name, norm="none", tie_stream_threshold=True, neuron=partial(ss.LIF, gradient="rs"))
    changed = wake(binary, images(name))
    assert changed == {layer: pytest.approx(binary.get_submodule(layer).threshold.item()) for layer in changed}
    assert min(firing_rates(binary.train(), images(name)).values()) > 0


def test_wake_lowers_fixed_thresholds_that_are_tied_together() -> None:
    name = "sew_dvs_tiny"
    fixed = partial(ss.LIF, gradient="rs", learn=())
    model = member(name, norm="none", tie_stream_threshold=True, neuron=fixed)
    changed = wake(model, images(name))
    assert any(len(set(stream) & set(changed)) not in (0, len(stream)) for stream in model.streams), "too easy a case"
    for stream in model.streams:
        assert len({model.get_submodule(layer).threshold.item() for layer in stream}) == 1
    assert min(firing_rates(model.train(), images(name)).values()) > 0


def test_the_dead_layer_trap_on_the_digits() -> None:
    spec = importlib.util.spec_from_file_location("dead_layer", ROOT / "examples" / "dead_layer.py")
    assert spec is not None and spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    x = example.digits()[0]
    for title, (norm, prepare) in example.runs().items():
        torch.manual_seed(0)
        model = example.MLP(norm)
        prepare(model)
        rates = firing_rates(model, x)
        accuracy = example.train(model, epochs=2)
        if title == "default":
            assert set(rates.values()) == {0.0}
            assert accuracy < 0.2
        else:
            assert min(rates.values()) > 0.01
            assert accuracy > 0.75, title
