"""The exported NIR graphs in nirtorch, Norse and snnTorch, and which reset each of them really applies."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn

import steadyspike as ss
from steadyspike.deploy import fold
from steadyspike.deploy.to_nir import DT, to_nir

nir = pytest.importorskip("nir")
pytestmark = [pytest.mark.peer, pytest.mark.filterwarnings("ignore")]


def dense(reset: str, start: str = "zero"):
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(6, 12), ss.LIF(reset=reset, init=start, threshold=0.6, tau=1.7), nn.Linear(12, 5),
        ss.LIF(reset=reset, init=start, gradient="rs"),
    )  # fmt: skip
    nn.init.uniform_(model[0].weight, 0, 0.5)
    nn.init.uniform_(model[2].weight, -0.3, 0.6)
    x = 2 * torch.rand(8, 16, 6)
    return fold(model.eval(), x), x


class LI(nn.Module):
    """NIR's leaky integrator from v = 0, one Euler step per call."""

    def __init__(self, node) -> None:
        super().__init__()
        self.gain, self.r = DT / torch.as_tensor(node.tau).float(), torch.as_tensor(node.r).float()
        self.v_leak = torch.as_tensor(node.v_leak).float()

    def forward(self, x, state=None):
        v = torch.zeros_like(x) if state is None else state
        v = v + self.gain * (self.v_leak + self.r * x - v)
        return v, v


class LIF(LI):
    """NIR's LIF node."""

    def __init__(self, node) -> None:
        super().__init__(node)
        self.v_threshold, self.v_reset = (torch.as_tensor(n).float() for n in (node.v_threshold, node.v_reset))

    def forward(self, x, state=None):
        v, _ = super().forward(x, state)
        s = v > self.v_threshold
        return s.float(), torch.where(s, self.v_reset, v)


class Pointwise(nn.Module):
    """NIR's Threshold and Scale."""

    def __init__(self, node) -> None:
        super().__init__()
        self.fires = isinstance(node, nir.Threshold)
        self.constant = torch.as_tensor(node.threshold if self.fires else node.scale).float()

    def forward(self, x):
        return (x > self.constant).float() if self.fires else x * self.constant


def linear(node):
    # nirtorch's own map writes the bias to another attribute and loses it.
    layer = nn.Linear(node.weight.shape[1], node.weight.shape[0])
    layer.weight.data, layer.bias.data = torch.as_tensor(node.weight), torch.as_tensor(node.bias)
    return layer


def frames_through(net, x):
    state, outs = None, []
    for frame in x:
        result = net(frame) if state is None else net(frame, state)
        out, state = result if isinstance(result, tuple) else (result, None)
        outs.append(out)
    return torch.stack(outs)


def test_nirtorch_runs_the_soft_reset_exactly():
    nirtorch = pytest.importorskip("nirtorch")
    network, x = dense("soft")
    maps = {nir.LI: LI, nir.Threshold: Pointwise, nir.Scale: Pointwise, nir.Affine: linear}
    got = frames_through(nirtorch.nir_to_torch(to_nir(network), maps), x)
    wanted = network(x)
    assert 0.02 < float(wanted.mean()) < 0.9 and torch.equal(got, wanted)


def norse_output(network, x, mode="lif"):
    norse = pytest.importorskip("norse.torch")
    return frames_through(norse.from_nir(to_nir(network, mode), dt=DT), x)


def snntorch_output(network, x, mode="lif"):
    module = pytest.importorskip("snntorch.import_nir")
    return frames_through(module.import_from_nir(to_nir(network, mode)), x)


@pytest.mark.parametrize("peer", [norse_output, snntorch_output], ids=["norse", "snntorch"])
def test_hard_reset_is_what_they_apply(peer):
    """A hard-reset network runs exactly; a soft-reset one, exported as plain LIF nodes, is run with a hard reset."""
    hard, x = dense("hard")
    assert torch.equal(peer(hard, x), hard(x)) and 0.02 < float(hard(x).mean()) < 0.9
    soft, _ = dense("soft")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        got = peer(soft, x)
    assert torch.equal(got, hard(x)) and not torch.equal(got, soft(x))


def settled_dense():
    """A hard-reset network whose neurons start at different potentials."""
    network, x = dense("hard")
    for name, buffer in network.named_buffers():
        if name.endswith("start"):
            buffer.fill_(0.29)
    return network, x


def test_nirtorch_runs_the_shift_form_exactly():
    nirtorch = pytest.importorskip("nirtorch")
    network, x = settled_dense()
    got = frames_through(nirtorch.nir_to_torch(to_nir(network, "shift"), {nir.LIF: LIF, nir.Affine: linear}), x)
    wanted = network(x)
    assert not torch.equal(wanted, dense("hard")[0](x)), "the initial potential changes nothing here"
    assert 0.02 < float(wanted.mean()) < 0.9 and torch.equal(got, wanted)


def test_norse_and_snntorch_do_not_run_the_shift_form():
    """Norse starts at v_leak instead of 0 and resets to 0; snnTorch refuses v_leak other than 0."""
    network, x = settled_dense()
    assert not torch.equal(norse_output(network, x, "shift"), network(x))
    with pytest.raises(Exception, match=r"v_leak|leak"):
        snntorch_output(network, x, "shift")
