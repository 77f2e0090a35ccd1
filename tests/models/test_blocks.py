"""The order of residual add and spike, and blocks, neurons and norms of the user's own."""

from __future__ import annotations

from collections import Counter
from functools import partial

import pytest
import torch
from torch import Tensor, nn

import steadyspike as ss
from steadyspike import models
from steadyspike.models.blocks.basic import BasicBlock
from steadyspike.models.blocks.conv import ConvNorm, ConvNormLIF
from steadyspike.models.blocks.ms import MSBlock
from steadyspike.models.blocks.sew import SEWBlock
from steadyspike.models.parts import Parts, Shape
from steadyspike.models.weight_init import initialise
from steadyspike.nn.factory import Site
from steadyspike.nn.neuron import neurons
from steadyspike.nn.norm import TEBN
from steadyspike.nn.norm.tdbn import TDBN
from tests.models.members import TINY, clip, images, member

SHAPE = Shape(8, 6, 6)
QUIET = partial(ss.LIF, threshold=0.7, init="zero")


def spikes(threshold: float = 0.7) -> Tensor:
    """[T, B, 8, 6, 6] of 0 and V."""
    torch.manual_seed(0)
    return threshold * (torch.rand(4, 3, *SHAPE) < 0.3)


def values(x: Tensor) -> set[float]:
    return {round(v, 4) for v in x.unique().tolist()}


@pytest.mark.parametrize("stride", [1, 2])
def test_basic_block_adds_before_the_spike(stride: int) -> None:
    block = BasicBlock(Parts(neuron=QUIET), SHAPE, 8, stride)
    x = spikes()
    y = block(x)
    assert values(y) == {0.0, 0.7}
    branch = block.conv2(block.lif1(block.conv1(x)))
    assert torch.equal(y, block.lif2(branch + block.shortcut(x)))
    assert isinstance(block.shortcut, nn.Identity) == (stride == 1)
    assert len(neurons(block)) == 2


@pytest.mark.parametrize("stride", [1, 2])
def test_ms_block_adds_currents_and_spikes_first(stride: int) -> None:
    block = MSBlock(Parts(neuron=QUIET), SHAPE, 8, stride)
    x = torch.randn(4, 3, *SHAPE)
    into_conv: list[Tensor] = []
    for conv in (block.conv1.conv, block.conv2.conv):
        conv.register_forward_pre_hook(lambda m, args: into_conv.append(args[0]))
    y = block(x)
    assert len(values(y)) > 100
    assert all(values(i) <= {0.0, 0.7} for i in into_conv)
    nn.init.zeros_(block.last_norm().weight)
    torch.testing.assert_close(block(x), block.shortcut(x))


def test_ms_block_with_pooled_shortcut_keeps_odd_sizes() -> None:
    block = MSBlock(Parts(), Shape(8, 7, 5), 16, 2, pool_shortcut=True)
    assert block(torch.randn(2, 3, 8, 7, 5)).shape == (2, 3, 16, 4, 3)


def test_sew_block_adds_after_the_spike() -> None:
    block = SEWBlock(Parts(neuron=QUIET), SHAPE, 8)
    assert values(block(spikes())) == {0.0, 0.7, 1.4}
    changing = SEWBlock(Parts(neuron=QUIET), SHAPE, 16, 2)
    assert values(changing(spikes())) <= {0.0, 0.7, 1.4}
    assert len(neurons(block)) == 2 and len(neurons(changing)) == 3


@pytest.mark.parametrize("gradient", ["trsg", "rs"])
@pytest.mark.parametrize("connect", ["and", "iand"])
def test_sew_gates_are_computed_on_spikes(connect: str, gradient: str) -> None:
    block = SEWBlock(
        Parts(neuron=partial(ss.LIF, threshold=0.3, gradient=gradient, init="zero")), SHAPE, 8, connect=connect
    )
    x = spikes(threshold=0.7)
    y = block(x)
    fired = block.branch2(block.branch1(x)) > 0
    open_gate = fired if connect == "and" else ~fired
    assert fired.any() and not fired.all()
    torch.testing.assert_close(y, x * open_gate)
    y.sum().backward()
    assert block.branch2.conv_norm.conv.weight.grad.any()


def test_a_neuron_without_spikes_is_taken_to_emit_them() -> None:
    class Step(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return (x > 0).to(x.dtype)

    block = SEWBlock(Parts(neuron=Step), SHAPE, 8, connect="iand")
    assert values(block(spikes(1.0))) == {0.0, 1.0}


def test_sew_options_are_checked() -> None:
    with pytest.raises(ValueError, match="unknown connect 'or'; known: add, and, iand"):
        models.create("sew_dvs_tiny", connect="or")
    with pytest.raises(ValueError, match="needs a norm with a bias"):
        models.create("sew_dvs_tiny", connect="and", zero_residual=True, norm="bntt")


@pytest.mark.parametrize("connect", ["add", "and", "iand"])
def test_sew_blocks_start_as_their_shortcut(connect: str) -> None:
    block = SEWBlock(Parts(neuron="if-sew"), SHAPE, SHAPE.channels, connect=connect)
    initialise(block, "default", zero_residual=True)
    x = spikes(1.0)
    assert torch.equal(block(x), x)


def test_tebn_normalises_identity_shortcuts_too() -> None:
    block = partial(BasicBlock, identity_norm=True)
    model = member("resnet19_tiny", block=block, norm="tebn", layers=(2, 1, 1))
    assert isinstance(model.body.layer1[1].shortcut, TEBN)
    assert model(images("resnet19_tiny")).isfinite().all()


def test_a_users_block() -> None:
    class Plain(nn.Module):
        def __init__(self, parts: Parts, shape: Shape, channels: int, stride: int) -> None:
            super().__init__()
            self.conv = ConvNormLIF(parts, shape, channels, 3, stride)

        def forward(self, x: Tensor) -> Tensor:
            return self.conv(x)

    for name in ("resnet19_tiny", "resnet34_tiny", "ms_resnet_tiny"):
        model = member(name, block=Plain)
        assert model(images(name)).shape == (4, 3, 10)
        assert any(isinstance(m, Plain) for m in model.modules())


def test_a_users_neuron_class_and_factory() -> None:
    class Slow(ss.LIF):
        def __init__(self) -> None:
            super().__init__(tau=4.0, init="zero")

    for neuron in (Slow, lambda: ss.LIF(tau=4.0), partial(ss.LIF, tau=4.0)):
        model = member("vgg9_tiny", neuron=neuron)
        assert len(neurons(model)) == 7
        assert all(abs(n.tau.item() - 4) < 1e-5 for n in neurons(model).values())
    with pytest.raises(TypeError, match="pass the class or a factory"):
        models.create("vgg9_tiny", neuron=ss.LIF())


@pytest.mark.parametrize("name", ["resnet19_tiny", "cnn7_tiny", "sew_dvs_tiny", "ms_resnet_tiny", "resnet34_tiny"])
def test_a_neuron_that_knows_its_place(name: str) -> None:
    class Learned:
        def at(self, site: Site) -> nn.Module:
            return ss.LIF(init=ss.LearnedInit((site.channels, *site.size)), channels=site.channels)

    options = {"spiking_fc": True} if name == "cnn7_tiny" else {"head": "tet"} if name == "resnet19_tiny" else {}
    model = member(name, neuron=Learned(), **options)
    assert model(images(name)).shape == (4, 3, 10)


def test_a_users_norm() -> None:
    class Affine(nn.Module):
        def __init__(self, channels: int) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.full((channels, 1, 1), 2.0))

        def forward(self, x: Tensor) -> Tensor:
            return x * self.weight

    model = member("resnet19_tiny", norm=Affine)
    convolutions = sum(isinstance(m, nn.Conv2d) for m in model.modules())
    assert sum(isinstance(m, Affine) for m in model.modules()) == convolutions
    assert model(images("resnet19_tiny")).isfinite().all()


def test_residual_norms_get_tdbn_alpha() -> None:
    model = member("resnet19_tiny", norm="tdbn-gamma", norm_threshold=0.5)
    block = model.body.layer2[0]
    assert torch.all(block.conv1.norm.weight == 0.5)
    for norm in (block.conv2.norm, block.shortcut.norm):
        torch.testing.assert_close(norm.weight, torch.full_like(norm.weight, 0.5 * 2**-0.5))


def test_dropout_comes_before_every_fully_connected_layer() -> None:
    model = models.create("resnet19_tiny", head="tet")
    assert model.head.dropout.p == 0.25
    order: list[str] = []
    for name in ("dropout", "fc1", "lif", "fc"):
        getattr(model.head, name).register_forward_hook(lambda m, args, out, n=name: order.append(n))
    model(images("resnet19_tiny"))
    assert order == ["dropout", "fc1", "lif", "dropout", "fc"]
    assert models.create("resnet19_tiny", dropout=0.0).head.dropout.p == 0.0


def test_votes_are_averaged() -> None:
    model = member("vgg9_tiny", votes=5, num_classes=4)
    x = torch.randn(4, 3, *[model.head.fc1.in_features])
    out = model.head(x.view(4, 3, -1, 2, 2))
    raw = model.head.fc(model.head.fc1(x))
    torch.testing.assert_close(out, raw.view(4, 3, 4, 5).mean(-1))


@pytest.mark.parametrize("how", ["subclass", "instance"])
@pytest.mark.parametrize("name", ["conv1", "conv2", "shortcut"])
def test_a_convolution_with_a_forward_of_its_own_runs_it(name: str, how: str) -> None:
    class Doubled(ConvNorm):
        def forward(self, x: Tensor) -> Tensor:
            return 2 * super().forward(x)

    block = BasicBlock(Parts(neuron=QUIET), SHAPE, 8, 2)
    layer, x = getattr(block, name), spikes()
    plain = layer.forward
    if how == "subclass":
        layer.__class__ = Doubled
    else:
        layer.forward = lambda x: 2 * plain(x)
    branch = block.conv2(block.lif1(block.conv1(x)))
    assert torch.equal(block(x), block.lif2(branch + block.shortcut(x)))


def readers(out: Tensor) -> Counter[object]:
    """How many operations read the result of each node of the graph behind ``out``."""
    assert out.grad_fn is not None
    count: Counter[object] = Counter()
    left, seen = [out.grad_fn], {out.grad_fn}
    while left:
        for node, _ in left.pop().next_functions:
            count[node] += 1
            if node is not None and node not in seen:
                seen.add(node)
                left.append(node)
    return count


@pytest.mark.parametrize("name", TINY)
def test_a_current_that_only_a_neuron_reads_is_never_in_memory(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Norm and neuron are one node. The current of a stream, which a later sum reads too, has to be in memory, and so
    do those between Spikingformer's first layers, each of which starts with its neuron."""
    normed: list[Tensor] = []
    read: list[Tensor] = []
    norm_forward, neuron_forward = TDBN.forward, ss.LIF.forward

    def seen_norm(norm: TDBN, y: Tensor) -> Tensor:
        normed.append(norm_forward(norm, y))
        return normed[-1]

    def seen_neuron(neuron: ss.LIF, x: Tensor) -> Tensor:
        read.append(x)
        return neuron_forward(neuron, x)

    model = member(name, timesteps=2)
    monkeypatch.setattr(TDBN, "forward", seen_norm)
    monkeypatch.setattr(ss.LIF, "forward", seen_neuron)
    count = readers(model(clip(name, 2, 2)))
    currents = [x for x in read for y in normed if x is y]
    alone = sum(count[x.grad_fn] == 1 for x in currents)
    assert alone == (4 if name == "spikingformer_tiny" else 0)
