"""SpikingJelly's model zoo, built small on the CPU: converted, compared in float64, trained a few steps.

Its ResNets and VGGs import torchvision for downloads only; a stand-in takes its place while they are imported.
"""

from __future__ import annotations

import copy
import sys
import types
from collections.abc import Callable
from typing import NamedTuple
from unittest import mock

import pytest
import torch
from torch import Tensor, nn

import steadyspike as ss
from steadyspike.interop.adopted import Adopted
from tests.interop.compare import assert_equal

pytest.importorskip("spikingjelly.activation_based", reason="SpikingJelly is not installed")
from spikingjelly.activation_based import functional, layer, model, neuron
from spikingjelly.activation_based.model import parametric_lif_net

pytestmark = pytest.mark.peer


def with_torchvision(name: str) -> types.ModuleType:
    """A module of the zoo, imported with a stand-in for torchvision if there is none."""
    stand_in = {"torchvision": types.ModuleType("torchvision")}
    stand_in["torchvision._internally_replaced_utils"] = types.ModuleType("torchvision._internally_replaced_utils")
    stand_in["torchvision._internally_replaced_utils"].load_state_dict_from_url = None  # type: ignore[attr-defined]
    added = {key: value for key, value in stand_in.items() if key not in sys.modules}
    sys.modules.update(added)
    try:
        return __import__(f"spikingjelly.activation_based.model.{name}", fromlist=["*"])
    finally:
        for key in added:
            sys.modules.pop(key, None)


class Case(NamedTuple):
    """build: a small network. shape: its input. batch_dim: 0 if the network makes its own time steps."""

    build: Callable[[], nn.Module]
    shape: tuple[int, ...]
    batch_dim: int = 1


def resnet(file: str, cls: str, block: str, **options) -> nn.Module:
    zoo = with_torchvision(file)
    return getattr(zoo, cls)(getattr(zoo, block), [1, 1, 1, 1], num_classes=5, **options)


def vgg() -> nn.Module:
    """SpikingVGG without its linear layers of 100 million weights."""
    zoo, linear = with_torchvision("spiking_vgg"), layer.Linear

    class Small(linear):  # type: ignore[valid-type, misc]
        def __init__(self, i: int, o: int) -> None:
            super().__init__(8 * 49 if i == 512 * 49 else 16, 5 if o == 5 else 16)

    with mock.patch.object(zoo.layer, "Linear", Small):
        return zoo.SpikingVGG([8, "M", 8, "M"], True, None, 5, spiking_neuron=neuron.LIFNode)


def plif_net(name: str) -> Callable[[], nn.Module]:
    return lambda: getattr(parametric_lif_net, name)(channels=4, spiking_neuron=neuron.ParametricLIFNode)


SMALL = {"T": 2, "num_classes": 5}
STAGES = {"layers": (1, 1, 1), "base_channels": 8, "stem_kernel_size": 3, "stem_stride": 1}
ZOO = {
    "MASNN": Case(
        lambda: model.MASNN(*(4, 2, 5, (8, 8), (4, 4, 4)), fc_hidden=8, reduction_t=2, reduction_c=2),
        (4, 2, 2, 8, 8),
    ),
    "AttMSResNet": Case(lambda: model.AttMSResNet(**SMALL, **STAGES, reduction_c=2), (3, 3, 16, 16), 0),
    "MSResNet": Case(lambda: model.MSResNet(**SMALL, **STAGES), (3, 3, 16, 16), 0),
    "MaxResNet": Case(lambda: model.MaxResNet(**SMALL, **STAGES), (3, 3, 16, 16), 0),
    "MaxFormer": Case(lambda: model.MaxFormer(**SMALL, embed_dims=32, depths=(1, 1, 1)), (3, 3, 32, 32), 0),
    "MaxFormer, CIFAR": Case(
        lambda: model.MaxFormer(**SMALL, embed_dims=32, depths=(1, 1, 1), cifar=True), (3, 3, 32, 32), 0
    ),
    "QKFormer": Case(
        lambda: model.QKFormer(**SMALL, embed_dims=32, num_heads=(1, 2, 2), depths=(1, 1, 1)), (3, 3, 32, 32), 0
    ),
    "SpikeDrivenTransformer": Case(
        lambda: model.SpikeDrivenTransformer(**SMALL, embed_dims=32, num_heads=2, depths=1), (3, 3, 32, 32), 0
    ),
    "Spikformer": Case(
        lambda: model.Spikformer(2, 3, 16, 16, 4, 5, embed_dims=32, num_heads=2, depths=1), (3, 3, 16, 16), 0
    ),
    "SEWResNet": Case(
        lambda: resnet(
            "sew_resnet", "SEWResNet", "BasicBlock", cnf="ADD", spiking_neuron=neuron.IFNode, detach_reset=True
        ),
        (2, 3, 3, 16, 16),
    ),
    "SEWResNet, bottleneck": Case(
        lambda: resnet(
            "sew_resnet", "SEWResNet", "Bottleneck", cnf="ADD", spiking_neuron=neuron.LIFNode, width_per_group=8
        ),
        (2, 3, 3, 16, 16),
    ),
    "SpikingResNet": Case(
        lambda: resnet("spiking_resnet", "SpikingResNet", "BasicBlock", spiking_neuron=neuron.LIFNode),
        (2, 3, 3, 16, 16),
    ),
    "SpikingVGG": Case(vgg, (2, 3, 3, 16, 16)),
    "MNISTNet": Case(plif_net("MNISTNet"), (2, 3, 1, 28, 28)),
    "FashionMNISTNet": Case(plif_net("FashionMNISTNet"), (2, 3, 1, 28, 28)),
    "NMNISTNet": Case(plif_net("NMNISTNet"), (2, 3, 2, 34, 34)),
    "CIFAR10Net": Case(plif_net("CIFAR10Net"), (2, 3, 3, 32, 32)),
    "CIFAR10DVSNet": Case(plif_net("CIFAR10DVSNet"), (2, 2, 2, 128, 128)),
    "DVSGestureNet": Case(plif_net("DVSGestureNet"), (2, 2, 2, 128, 128)),
}


def built(case: Case) -> nn.Module:
    """The network with weights that let every layer fire now and then."""
    torch.manual_seed(0)
    net = case.build().double()
    functional.set_step_mode(net, "m")
    with torch.no_grad():
        for module in net.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                module.weight.fill_(2.0)
                module.bias.uniform_(0.0, 0.5)
            elif isinstance(module, nn.Dropout) or "Dropout" in type(module).__name__:
                module.p = 0.0
        for node in (m for m in net.modules() if isinstance(m, neuron.BaseNode)):
            # Not 1: sums of spikes would meet the threshold exactly, and rounding would decide who fires.
            node.v_threshold *= 0.377
    return net


def whole(net: nn.Module, x: Tensor) -> Tensor:
    out = net(x)
    functional.reset_net(net)
    return out


@pytest.mark.parametrize("name", ZOO)
def test_the_zoo_converts_exactly_and_trains(name: str) -> None:
    case = ZOO[name]
    net = built(case)
    ours = ss.convert(copy.deepcopy(net), report=None)
    nodes = [m for m in ours.modules() if isinstance(m, neuron.BaseNode)]
    assert nodes and all(isinstance(m, Adopted) for m in nodes), ours.conversion
    x = 2 * torch.rand(case.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    compare(net, ours, x)
    ss.stabilize(ours, report=None)
    optimizer = torch.optim.SGD(ours.parameters(), lr=0.01)
    before = [m.threshold.detach().clone() for m in nodes]
    for _ in range(2):
        optimizer.zero_grad()
        out = whole(ours, x)
        (out * torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view_as(out)).sum().backward()
        optimizer.step()
    assert all(bool(p.isfinite().all()) for p in ours.parameters())
    assert any(not torch.equal(m.threshold, v) for m, v in zip(nodes, before))


def compare(net: nn.Module, ours: nn.Module, x: Tensor) -> None:
    """Outputs and gradients in training mode; the outputs of most of these networks are logits, not spikes."""

    def run(m: nn.Module, x: Tensor) -> list[Tensor]:
        seen: list[Tensor] = []
        first = next(c for c in m.modules() if isinstance(c, neuron.BaseNode))
        handle = first.register_forward_hook(lambda module, args, out: seen.append(out))
        out = whole(m, x)
        handle.remove()
        return [out, seen[0].detach()]

    assert_equal(run, net, ours, x, tolerance=1e-8)


def test_online_learning_neurons_are_left() -> None:
    zoo = with_torchvision("spiking_vggws_ottt")
    net = zoo.OTTTSpikingVGG([8, "M"], num_classes=5, spiking_neuron=neuron.OTTTLIFNode)
    ss.convert(net, report=None)
    assert not net.conversion.converted
    assert any("OTTTLIFNode" in row.remarks[0] for row in net.conversion.left)


def test_searched_networks() -> None:
    """SNASNet and SpikeDHS are too large for a comparison here; SpikeDHS has neurons that keep their potentials."""
    from spikingjelly.activation_based.model.snas_net import SNASNet
    from spikingjelly.activation_based.model.spike_dhs import SpikeDHS

    options = {"dataset": "cifar10", "celltype": "forward", "timestep": 2, "second_avgpooling": 4}
    net = SNASNet(types.SimpleNamespace(**options, threshold=1.0, tau=1.33), torch.ones(4, 4, dtype=torch.long))
    ss.convert(net, report=None)
    assert net.conversion.converted and not net.conversion.left
    options = {"fea_step": 3, "fea_num_layers": 8, "fea_block_multiplier": 3, "fea_filter_multiplier": 4}
    net = SpikeDHS(3, types.SimpleNamespace(**options))
    ss.convert(net, report=None)
    assert net.conversion.converted
    assert all("its own" in row.remarks[0] for row in net.conversion.left) and net.conversion.left
