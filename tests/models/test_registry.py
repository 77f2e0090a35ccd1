"""Every registered model gets these tests by being registered."""

from __future__ import annotations

import copy
import inspect

import numpy as np
import pytest
import torch
from torch import nn

from steadyspike import models
from steadyspike.models import model_registry as registry
from steadyspike.nn.groups import parameter_groups
from steadyspike.nn.model_check import check_model
from steadyspike.nn.neuron import neurons
from steadyspike.nn.neurons import PLIF
from tests.models.members import FAMILIES, TINY, bfloat16, clip, images, member, one_step, patterns


def test_every_family_has_a_tiny_member() -> None:
    assert {registry.entry(name).family for name in TINY} == set(FAMILIES)


def test_the_names_that_recipes_use_exist() -> None:
    expected = {
        "resnet19",
        "cnn7",
        "vggsnn",
        "vgg9",
        "resnet34",
        "sew_resnet34",
        "ms_resnet18",
        "ms_resnet34",
        "sew_dvs",
    }
    assert expected <= set(models.names())
    assert models.names("sew_dvs") == ["sew_dvs", "sew_dvs_tiny"]


@pytest.mark.parametrize("name", models.names())
def test_full_size_members_can_be_built_without_memory(name: str) -> None:
    with torch.device("meta"):
        model = models.create(name, num_classes=7, in_channels=5)
    assert model.in_channels == 5
    assert all(p.device.type == "meta" for p in model.parameters())


@pytest.mark.parametrize("name", TINY)
def test_output_is_time_batch_classes(name: str) -> None:
    model = member(name, num_classes=7, timesteps=2)
    assert model(images(name)).shape == (2, 3, 7)
    assert model(images(name, 5), timesteps=4).shape == (4, 5, 7)
    assert model(clip(name, 6, 2)).shape == (6, 2, 7)


@pytest.mark.parametrize("name", TINY)
def test_every_parameter_gets_a_gradient(name: str) -> None:
    model = member(name)
    if any(not p.any() for n, p in model.named_parameters() if n.endswith("norm.weight")):
        one_step(model, images(name))
    out = model(images(name, 4))
    (out * torch.randn(out.shape, generator=torch.Generator().manual_seed(2))).sum().backward()
    for parameter_name, p in model.named_parameters():
        assert p.grad is not None and p.grad.isfinite().all() and p.grad.any(), parameter_name


@pytest.mark.parametrize("name", TINY)
def test_check_model_finds_nothing(name: str) -> None:
    model = member(name)
    one_step(model, images(name))
    for example, batch_dim in ((images(name), 0), (clip(name), 1)):
        report = check_model(model, example, batch_dim=batch_dim)
        assert report.ok, str(report)


@pytest.mark.parametrize("name", TINY)
def test_state_dict_round_trip_and_copy(name: str) -> None:
    x = images(name)
    model = member(name)
    one_step(model, x)
    other = models.create(name)
    other.load_state_dict(model.state_dict())
    expected = model.eval()(x)
    assert torch.equal(other.eval()(x), expected)
    assert torch.equal(copy.deepcopy(model)(x), expected)


@pytest.mark.parametrize("name", TINY)
def test_bfloat16_autocast(name: str) -> None:
    model = member(name)
    one_step(model, images(name))
    with bfloat16():
        out = model(images(name))
        assert out.dtype == torch.bfloat16
        out.float().square().mean().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("name", TINY)
@pytest.mark.parametrize("norm", ["bn", "bntt", "tebn", "tab", "tdbn-scaled", "none"])
def test_every_norm_takes_images_and_clips(name: str, norm: str) -> None:
    model = member(name, norm=norm, **({"zero_residual": False} if name == "ms_resnet_tiny" else {}))
    assert model(images(name)).isfinite().all()
    assert model(clip(name, 4)).isfinite().all()
    if norm in ("bntt", "tebn", "tab"):
        with pytest.raises(ValueError, match="time steps"):
            model(images(name), timesteps=6)


@pytest.mark.parametrize("name", TINY)
def test_width_scales_every_layer(name: str) -> None:
    def sizes(model: nn.Module) -> dict[str, tuple[int, int]]:
        actual = {n: m for n, m in model.named_modules() if isinstance(m, (nn.Conv2d, nn.Linear))}
        return {n: (m.weight.shape[1], m.weight.shape[0]) for n, m in actual.items()}

    narrow, wide = (sizes(member(name, width=w, num_classes=8)) for w in (0.25, 0.5))
    first, last = next(iter(narrow)), list(narrow)[-1]
    for layer, (fan_in, fan_out) in narrow.items():
        assert wide[layer][1] == (fan_out if layer == last else 2 * fan_out), layer
        assert wide[layer][0] == (fan_in if layer == first else 2 * fan_in), layer


def test_width_rounds_to_a_multiple_of_eight_and_never_to_zero() -> None:
    parts = models.Parts(width=0.3)
    assert [parts.channels(n) for n in (8, 64, 128, 512)] == [8, 16, 40, 152]
    assert models.Parts().channels(12) == 12


def test_unknown_names_and_options_say_what_is_known() -> None:
    with pytest.raises(ValueError, match="known: cnn7, "):
        models.create("resnet20")
    with pytest.raises(TypeError, match="cnn7 has no option 'head'; known: spiking_fc, dropout, init, conv_bias"):
        models.create("cnn7", head="tet")
    with pytest.raises(ValueError, match="exists already"):
        models.register("cnn7", registry.entry("cnn7"))
    with pytest.raises(ValueError, match="unknown norm"):
        models.create("cnn7_tiny", norm="batch")
    with pytest.raises(ValueError, match="known: linear, tet, tebn"):
        models.create("resnet19_tiny", head="fc")
    with pytest.raises(ValueError, match="larger image_size"):
        models.create("sew_dvs", image_size=64)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("resnet19_tiny", {"layers": (1, 1)}),
        ("resnet19_tiny", {"layers": (1, 0, 1)}),
        ("resnet34_tiny", {"layers": (1, 1, 1, 1, 1)}),
        ("sew_resnet34_tiny", {"layers": (1, 1, 1)}),
        ("ms_resnet_tiny", {"layers": 4}),
        ("ms_resnet_tiny", {"layers": (1, 1, 1, 1.5)}),
        ("sew_dvs_tiny", {"blocks": (1, 1, 1)}),
        ("sew_dvs_tiny", {"blocks": (0, 1)}),
        ("cnn7_tiny", {"num_classes": 0}),
        ("cnn7_tiny", {"num_classes": 2.5}),
        ("cnn7_tiny", {"in_channels": 0}),
        ("cnn7_tiny", {"image_size": -4}),
        ("cnn7_tiny", {"image_size": (16, 0)}),
        ("cnn7_tiny", {"image_size": (2, 16, 16)}),
        ("cnn7_tiny", {"image_size": "16"}),
        ("cnn7_tiny", {"timesteps": 4.0}),
        ("cnn7_tiny", {"width": float("inf")}),
        ("cnn7_tiny", {"width": "2"}),
    ],
)
def test_numbers_are_checked_when_a_network_is_made(name: str, options: dict) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        models.create(name, **options)


def test_numbers_of_numpy_are_numbers() -> None:
    model = models.create("cnn7_tiny", image_size=np.int64(24), num_classes=np.int64(3), timesteps=np.int32(2))
    assert model(torch.randn(2, 2, 24, 24)).shape == (2, 2, 3)


def test_neurons_and_norms_by_name_or_with_a_reason() -> None:
    assert all(isinstance(layer, PLIF) for layer in neurons(models.create("resnet19_tiny", neuron="plif")).values())
    assert models.Parts(neuron="plif").make_flat_neuron(3).spec.family == "as"
    for wrong in (None, {"name": "plif"}, 3):
        with pytest.raises(TypeError, match="neuron must be a name"):
            models.create("resnet19_tiny", neuron=wrong)
    with pytest.raises(ValueError, match="unknown neuron 'plof'"):
        models.create("resnet19_tiny", neuron="plof")
    for wrong in (None, 3):
        with pytest.raises(TypeError, match="norm must be a name"):
            models.create("resnet19_tiny", norm=wrong)
    with pytest.raises(TypeError, match="norm is a layer"):
        models.create("resnet19_tiny", norm=nn.BatchNorm2d(8))


@pytest.mark.parametrize("norm", ["tdbn-scaled", "tdbn-gamma"])
def test_scaled_norms_take_v_from_the_neuron(norm: str) -> None:
    def scale(**options: object) -> float:
        first = member("resnet19_tiny", norm=norm, **options).stem.conv_norm.norm
        return float((first.weight * first.factor).detach()[0])

    assert scale() == pytest.approx(1.0)
    assert scale(neuron="lif-tdbn") == pytest.approx(0.5)
    assert scale(neuron="lif-tdbn", norm_threshold=0.8) == pytest.approx(0.8)
    with torch.device("meta"):
        assert member("resnet19_tiny", norm="tdbn-scaled", neuron="imp").stem.conv_norm.norm.factor == pytest.approx(
            1.0
        )
    plain, scaled = member("resnet19_tiny", neuron="imp"), member("resnet19_tiny", neuron="imp", norm=norm)
    assert torch.equal(plain.head.fc.weight, scaled.head.fc.weight)  # the look at V draws no random numbers


@pytest.mark.parametrize(("name", "options"), [("cnn7_tiny", {}), ("resnet19_tiny", {"head": "tebn"})])
def test_another_image_size_is_refused_where_the_head_is_fixed(name: str, options: dict) -> None:
    x = torch.randn(2, registry.entry(name).in_channels, 32, 32)
    with pytest.raises(ValueError, match="image_size="):
        member(name, **options)(x)
    assert member(name, image_size=32, **options)(x).isfinite().all()


def test_pixels_and_odd_numbers_of_steps_are_refused() -> None:
    model = member("cnn7_tiny")
    with pytest.raises(TypeError, match=r"got torch.uint8; scale them, e.g. x.float\(\) / 255"):
        model(torch.zeros(2, 2, 16, 16, dtype=torch.uint8))
    for wrong in (2.5, 0, -1):
        with pytest.raises(ValueError, match="timesteps must be a whole number"):
            model(images("cnn7_tiny"), timesteps=wrong)


@pytest.mark.parametrize("shape", [(3, 16, 16), (4, 1, 16, 16), (2, 4, 1, 16, 16)])
def test_input_of_another_kind_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"static images \[B, 3, H, W\] or frames \[T, B, 3, H, W\], got shape"):
        member("resnet19_tiny")(torch.zeros(shape))


def test_frames_bring_their_own_number_of_steps() -> None:
    model = member("cnn7_tiny")
    with pytest.raises(ValueError, match="the input has 3 frames, so timesteps=2 cannot be"):
        model(clip("cnn7_tiny", 3), timesteps=2)


def test_the_registry_stays_small() -> None:
    assert len(inspect.getsource(registry).splitlines()) < 120


@pytest.mark.parametrize("name", TINY)
def test_every_family_learns_a_batch(name: str) -> None:
    model = member(name, num_classes=4)
    x, y = patterns(name)
    optimizer = torch.optim.Adam(parameter_groups(model, 0.0), lr=1e-2)
    losses = []
    for _ in range(40):
        loss = nn.functional.cross_entropy(model(x).mean(0), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    # Chance is log 4 = 1.386.
    assert losses[0] > 1.2 and losses[-1] < 0.5, losses
