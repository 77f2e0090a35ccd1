"""EMS-YOLO: published sizes, strides and starts, blocks, and that every parameter learns."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import steadyspike as ss
from steadyspike import models
from steadyspike.detection.networks.detect import Detect
from steadyspike.detection.networks.ems import EMSBlock
from steadyspike.models.blocks.conv import ConvNorm
from steadyspike.models.parts import Parts, Shape
from steadyspike.nn.groups import parameter_kinds
from steadyspike.nn.neuron import neurons
from tests.models.members import weights_and_neurons


@pytest.mark.parametrize(
    ("name", "classes", "weights", "lifs"),
    [
        ("ems_resnet10", 80, 17_561_662, 24),
        ("ems_resnet10_ee", 80, 6_387_230, 21),
        ("ems_resnet10_ee", 2, 6_207_050, 21),
        ("ems_resnet18_ee", 2, 9_343_370, 29),
    ],
)
def test_sizes_are_the_published_ones(name: str, classes: int, weights: int, lifs: int) -> None:
    with torch.device("meta"):
        assert weights_and_neurons(models.create(name, num_classes=classes)) == (weights, lifs)


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("ems_resnet10", "9536 78208 225920 902400 3607040 7212032 3673088 82688 1574400 196350"),
        ("ems_resnet10_ee", "928 28928 115200 459776 1837056 1017088 1837056 57984 836864 196350"),
    ],
)
def test_every_layer_has_its_published_size(name: str, sizes: str) -> None:
    with torch.device("meta"):
        net = models.create(name)
    body = net.body
    layers = [net.stem, body.layer1, body.layer2, body.layer3, body.layer4]
    layers += [body.neck, body.coarse, body.side, body.fine, net.head]
    assert [weights_and_neurons(layer)[0] for layer in layers] == [int(size) for size in sizes.split()]


def small(**options: object) -> nn.Module:
    torch.manual_seed(0)
    return models.create("ems_resnet10_ee_small", timesteps=2, **options)


@pytest.mark.parametrize("form", ["plain", "ee"])
def test_maps_of_two_scales(form: str) -> None:
    net = small(form=form)
    maps = net(torch.rand(2, 3, 64, 96))
    assert [tuple(m.shape) for m in maps] == [(2, 3, 4, 6, 8), (2, 3, 2, 3, 8)]
    assert net.head.strides == (16, 32)
    frames = net(torch.rand(4, 2, 3, 64, 64))
    assert frames[0].shape == (2, 3, 4, 4, 8)
    with pytest.raises(ValueError, match="multiples of 32"):
        net(torch.rand(1, 3, 64, 80))
    with pytest.raises(ValueError, match="multiples of 32"):
        small(image_size=(64, 80))


@pytest.mark.parametrize("form", ["plain", "ee"])
def test_every_parameter_gets_a_gradient(form: str) -> None:
    net = small(form=form)
    maps = net(torch.rand(4, 3, 96, 96))
    generator = torch.Generator().manual_seed(1)
    sum((m * torch.randn(m.shape, generator=generator)).sum() for m in maps).backward()
    for name, p in net.named_parameters():
        assert p.grad is not None and p.grad.isfinite().all() and p.grad.any(), name


def test_the_head_takes_the_mean_over_time() -> None:
    head = Detect([Shape(8, 2, 2)], 3, (10.0, 10.0))
    x = torch.randn(5, 2, 8, 2, 2)
    mean = torch.stack([head([step[None]])[0] for step in x]).mean(0)
    torch.testing.assert_close(head([x])[0], mean)


def test_biases_start_as_published() -> None:
    head = Detect([Shape(8, 2, 2), Shape(8, 1, 1)], 3)
    raw = [conv.bias.detach().clone().view(3, -1) for conv in head.convs]
    head.set_strides((16, 32), 8.0)
    for conv, start, stride in zip(head.convs, raw, (16, 32)):
        moved = conv.bias.detach().view(3, -1) - start
        assert moved[:, :4].abs().max() == 0
        assert moved[:, 4].tolist() == pytest.approx([math.log(8 / (640 / stride) ** 2)] * 3, abs=1e-5)
        assert moved[0, 5:].tolist() == pytest.approx([math.log(0.6 / (3 - 0.999999))] * 3, abs=1e-5)


@pytest.mark.parametrize(("neuron", "threshold"), [("lif", 1.0), ("lif-tdbn", 0.5)])
def test_gains_start_in_proportion_to_the_threshold(neuron: str, threshold: float) -> None:
    net = small(neuron=neuron)
    last = {id(block.last_norm()) for block in net.modules() if isinstance(block, EMSBlock)}
    for module in net.modules():
        if isinstance(module, ConvNorm):
            expected = threshold * (0.2 if id(module.norm) in last else 1.0)
            assert module.norm.weight.detach().unique().tolist() == pytest.approx([expected])
    assert len(last) == 8
    other = small(neuron=neuron, gain=0.5, last_gain=0.1)
    assert float(other.stem.norm.weight[0].detach()) == pytest.approx(0.5 * threshold)


def test_the_concat_shortcut_is_new_channels_then_x_then_pooling() -> None:
    block = EMSBlock(Parts(timesteps=2), Shape(8, 8, 8), 24, 2, concat=True).eval()
    x = torch.randn(2, 3, 8, 8, 8)
    new = block.shortcut(x)
    joined = torch.cat([new, x], 2)
    pooled = nn.functional.max_pool2d(joined.flatten(0, 1), 2).unflatten(0, (2, 3))
    torch.testing.assert_close(block(x), block.branch2(block.branch1(x)) + pooled)


@pytest.mark.parametrize("real", [False, True])
def test_the_converting_shortcut_pools_real_values_first(real: bool) -> None:
    block = EMSBlock(Parts(timesteps=2), Shape(16, 8, 8), 8, 2, real=real).eval()
    x = torch.randn(2, 3, 16, 8, 8)
    pooled = nn.functional.max_pool2d(x.flatten(0, 1), 2).unflatten(0, (2, 3))
    torch.testing.assert_close(block(x), block.branch2(block.branch1(x)) + block.shortcut(pooled))
    assert isinstance(block.shortcut, ConvNorm) == real
    same = EMSBlock(Parts(timesteps=2), Shape(16, 8, 8), 16)
    assert isinstance(same.shortcut, nn.Identity)


@pytest.mark.parametrize("neuron", ["plif", "if", "imp", "mps"])
def test_any_neuron(neuron: str) -> None:
    net = small(neuron=neuron)
    assert all(m.isfinite().all() for m in net(torch.rand(2, 3, 64, 64)))


def test_memory_is_estimated_for_a_list_of_maps() -> None:
    one, two = (ss.memory_estimate(small(), torch.empty(n, 3, 64, 64, device="meta")).saved for n in (1, 2))
    assert 0 < one < two


def test_neurons_have_a_group_of_their_own() -> None:
    net = small()
    kinds = parameter_kinds(net)
    assert sum(len(group) for group in kinds.values()) == len(list(net.parameters()))
    assert len(kinds["neurons"]) == 2 * len(neurons(net))
    assert {p.ndim for p in kinds["weights"]} == {4} and {p.ndim for p in kinds["norms"]} == {1}


def test_building_draws_the_same_numbers_and_moves_no_statistics() -> None:
    first, second = small(), small()
    for (name, a), (_, b) in zip(first.state_dict().items(), second.state_dict().items()):
        assert torch.equal(a, b), name
    assert not any(layer.init.running_mean.any() for layer in neurons(first).values())
    assert first.training


@pytest.mark.parametrize("wrong", [{"form": "lean"}, {"anchors": (1.0, 2.0)}, {"objects": 0.0}, {"layers": (1, 1)}])
def test_wrong_options_are_named(wrong: dict) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        small(**wrong)
