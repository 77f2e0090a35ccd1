"""Models of other libraries as networks of our own layers: equal outputs, folded, streamed and exported."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

import steadyspike as ss
from steadyspike.deploy import CannotFold, fold

pytestmark = pytest.mark.peer


def spikingjelly(mode: str, **options: object) -> nn.Module:
    activation = pytest.importorskip("spikingjelly.activation_based")
    del activation
    from spikingjelly.activation_based import functional, layer, neuron

    torch.manual_seed(0)
    fire = neuron.ParametricLIFNode if options.pop("plif", False) else neuron.LIFNode
    if options.pop("integrate", False):
        fire = neuron.IFNode
    net = nn.Sequential(
        layer.Conv2d(2, 6, 3, padding=1, bias=False), layer.BatchNorm2d(6), fire(**options), layer.MaxPool2d(2),
        layer.Conv2d(6, 6, 3, padding=1), layer.BatchNorm2d(6), fire(**options), layer.Flatten(), layer.Linear(54, 3),
    )  # fmt: skip
    functional.set_step_mode(net, mode)
    for norm in (net[1], net[5]):
        nn.init.constant_(norm.weight, 4.0)  # so that neurons fire
    return net


def snntorch(**options: object) -> nn.Module:
    snn = pytest.importorskip("snntorch")
    torch.manual_seed(0)
    fire = {"beta": 0.7, "threshold": 0.4, "init_hidden": True, **options}
    return nn.Sequential(
        nn.Conv2d(2, 6, 3, padding=1), snn.Leaky(**fire), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(54, 8),
        snn.Leaky(**fire), nn.Linear(8, 3),
    )  # fmt: skip


def norse(lifted: bool) -> nn.Module:
    norse_torch = pytest.importorskip("norse.torch")
    torch.manual_seed(0)
    p = norse_torch.LIFBoxParameters(tau_mem_inv=torch.as_tensor(300.0), v_th=torch.as_tensor(0.2))
    cells = [norse_torch.LIFBoxCell(p) for _ in range(2)]
    a, b, o = nn.Linear(6, 12), nn.Linear(12, 8), nn.Linear(8, 3)
    if not lifted:
        return norse_torch.SequentialState(a, cells[0], b, cells[1], o)

    class Lifted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.o = a, b, o
            self.fire, self.late = (norse_torch.Lift(cell) for cell in cells)

        def forward(self, x: Tensor) -> Tensor:
            h, _ = self.fire(self.a(x))
            h, _ = self.late(self.b(h))
            return self.o(h)

    return Lifted()


def looped(model: nn.Module, x: Tensor, states: bool = False) -> Tensor:
    """The converted model's own outputs, one step per call."""
    outs, state = [], None
    with ss.window(model):
        for frame in x:
            out = model(frame) if not states else model(frame, state)
            out, state = out if states else (out, None)
            outs.append(out)
    return torch.stack(outs)


IMAGES = 2 * torch.rand(4, 3, 2, 6, 6, generator=torch.Generator().manual_seed(0))
VECTORS = 4 * torch.rand(4, 3, 6, generator=torch.Generator().manual_seed(0))

CASES = {
    "SpikingJelly, hard reset": lambda: (spikingjelly("m"), IMAGES, None),
    "SpikingJelly, soft reset": lambda: (spikingjelly("m", v_reset=None, tau=3.0, v_threshold=0.6), IMAGES, None),
    "SpikingJelly, resting elsewhere": lambda: (spikingjelly("m", v_reset=-0.3), IMAGES, None),
    "SpikingJelly, PLIF": lambda: (spikingjelly("m", plif=True, decay_input=False), IMAGES, None),
    "SpikingJelly, IF": lambda: (spikingjelly("m", integrate=True), IMAGES, None),
    "SpikingJelly, single steps": lambda: (spikingjelly("s", v_reset=None), IMAGES, False),
    "snnTorch, reset by subtraction, one step late": lambda: (snntorch(), IMAGES, False),
    "snnTorch, little memory": lambda: (snntorch(beta=0.2, threshold=0.15), IMAGES, False),
    "snnTorch, no leak": lambda: (snntorch(beta=1.0), IMAGES, False),
    "snnTorch, reset to zero": lambda: (snntorch(reset_mechanism="zero"), IMAGES, False),
    "snnTorch, reset at once": lambda: (snntorch(reset_mechanism="zero", reset_delay=False), IMAGES, False),
    "Norse, lifted": lambda: (norse(True), VECTORS, None),
    "Norse, cells": lambda: (norse(False), VECTORS, True),
}


def settled(model: nn.Module, x: Tensor, states: bool | None) -> None:
    """A few training forwards: batch norms and MP-Init see the data."""
    model.train()
    with torch.no_grad():
        for _ in range(5):
            model(x) if states is None else looped(model, x, states)
    model.eval()


@pytest.mark.parametrize("stabilised", [False, True])
@pytest.mark.parametrize("name", CASES)
@torch.no_grad()
def test_equal_folded_and_streamed(name, stabilised):
    model, x, states = CASES[name]()
    (ss.stabilize if stabilised else ss.convert)(model, report=None)
    settled(model, x, states)
    model, x = model.double(), x.double()
    expected = model(x) if states is None else looped(model, x, states)
    expected = expected[0] if isinstance(expected, tuple) else expected
    native = ss.to_native(model)
    assert torch.allclose(native(x), expected, atol=1e-6)
    layers = [m for m in native.modules() if isinstance(m, (ss.LIF, ss.IF))]
    assert len(layers) == 2
    network = fold(model, x)
    assert network.proofs[0].worst == 0.0 and not network.proofs[0].silent
    assert torch.allclose(network(x), expected, atol=1e-6)
    for streamed in (model, network):
        one = ss.stream(streamed)
        assert torch.allclose(torch.stack([one(frame) for frame in x]), expected, atol=1e-6)


def test_to_native_takes_the_original_and_leaves_it():
    net = spikingjelly("m").eval()
    with torch.no_grad():
        before = net(IMAGES)
        native = ss.to_native(net)
        assert torch.allclose(native(IMAGES), before, atol=1e-5)
    assert type(net[2]).__module__.startswith("spikingjelly") and type(net[2]).__name__ == "LIFNode"


def test_what_has_other_dynamics_is_named():
    for options, named in (({"reset_delay": False}, "subtracts the threshold again"), ({"beta": 0.0}, "beta = 0")):
        model = ss.convert(snntorch(**options), report=None).eval()
        with pytest.raises(CannotFold, match=f"1: no plain LIF layer is equal to it: .*{named}"):
            fold(model, IMAGES)
    from spikingjelly.activation_based import neuron

    with pytest.raises(ValueError, match="QIFNode"):
        ss.to_native(nn.Sequential(nn.Linear(6, 8), neuron.QIFNode()))


def test_a_model_that_loops_itself_is_refused():
    class Loops(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = spikingjelly("s")

        def forward(self, x: Tensor) -> Tensor:
            return torch.stack([self.net(frame) for frame in x])

    model = ss.convert(Loops(), report=None).eval()
    with pytest.raises(ValueError, match=r"does not run|does not take|loops over time"):
        fold(model, IMAGES)


class TwicePerStep(nn.Module):
    """One neuron object for two layers: its second call continues from the potential of the first."""

    def __init__(self, fire: nn.Module) -> None:
        super().__init__()
        self.a, self.b, self.fire = nn.Linear(6, 8), nn.Linear(8, 8), fire

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.fire(self.b(self.fire(self.a(x))))
        return out


def test_a_neuron_called_twice_in_a_step_is_refused():
    """A layer of this library starts its second call from its initial potential, which gives other spikes."""
    snn = pytest.importorskip("snntorch")
    node = pytest.importorskip("spikingjelly.activation_based.neuron").LIFNode()
    for fire in (snn.Leaky(0.8, init_hidden=True), node):
        model = ss.convert(TwicePerStep(fire), report=None).eval()
        with pytest.raises(ValueError, match="called twice in one step"):
            fold(model, VECTORS)
        with pytest.raises(ValueError, match="called twice in one step"):
            ss.to_native(model)(VECTORS)


@torch.no_grad()
def test_a_multi_step_neuron_called_twice_in_a_forward_is_refused():
    neuron = pytest.importorskip("spikingjelly.activation_based.neuron")
    model = TwicePerStep(neuron.LIFNode(step_mode="m")).eval()
    with pytest.raises(ValueError, match=r"fire is called twice in one forward.*its own neuron"):
        ss.to_native(model)(VECTORS)
    once = ss.to_native(nn.Sequential(nn.Linear(6, 8), neuron.LIFNode(step_mode="m")))
    assert torch.equal(copy.deepcopy(once)(VECTORS), once(VECTORS))  # two forwards of one call each


def test_a_loop_inside_that_starts_its_own_states_is_named():
    """The form of snnTorch's tutorials: `mem = lif.init_leaky()`, then a loop over time."""
    snn = pytest.importorskip("snntorch")

    class Loops(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc, self.lif = nn.Linear(6, 3), snn.Leaky(0.8)

        def forward(self, x: Tensor) -> Tensor:
            mem, spikes = self.lif.init_leaky(), []
            for frame in x:
                spike, mem = self.lif(self.fc(frame), mem)
                spikes.append(spike)
            return torch.stack(spikes)

    model = ss.convert(Loops(), report=None).eval()
    with pytest.raises(ValueError, match=r"'init_leaky': a model that loops over time itself.* computes one step"):
        fold(model, VECTORS)


@pytest.mark.parametrize("seed", range(20))
@torch.no_grad()
def test_a_reset_one_step_late_is_a_soft_reset_counted_from_another_zero(seed):
    """M[t] = beta M[t-1] + x[t] - V S[t-1] of the original Leaky, spike for spike in float64."""
    snn = pytest.importorskip("snntorch")
    generator = torch.Generator().manual_seed(seed)
    beta, threshold = 0.02 + 0.98 * torch.rand(1, generator=generator), 0.1 + torch.rand(1, generator=generator)
    layer = snn.Leaky(float(beta), threshold=float(threshold), init_hidden=True).double()
    x = threshold * (1 + 3 * torch.randn(9, 20, 20, generator=generator, dtype=torch.float64))
    expected = torch.stack([layer(frame).double() for frame in x])
    assert torch.equal(ss.to_native(nn.Sequential(layer)).double()(x), expected)
    assert 0.2 < expected.mean() < 0.8


@torch.no_grad()
def test_snntorch_to_onnx_and_nir(tmp_path):
    """The default Leaky; its offset goes into the bias of the layer before it, which NIR needs."""
    ort = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript"), pytest.importorskip("nir")
    snn = pytest.importorskip("snntorch")
    torch.manual_seed(0)
    fire = {"beta": 0.7, "threshold": 0.3, "init_hidden": True}
    model = nn.Sequential(nn.Linear(6, 12), snn.Leaky(**fire), nn.Linear(12, 8), snn.Leaky(**fire), nn.Linear(8, 3))
    expected = looped(ss.convert(model, report=None), VECTORS)
    network = fold(model.eval(), VECTORS)
    assert {node.op for node in network.graph} == {"input", "linear", "lif"} and not network.proofs[0].silent
    path = ss.deploy.export_onnx(network, tmp_path / "net.onnx")
    (out,) = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"]).run(None, {"input": VECTORS.numpy()})
    assert torch.allclose(torch.from_numpy(out), expected, atol=1e-5)
    again = ss.deploy.from_nir(ss.deploy.export_nir(network, tmp_path / "net.nir"))
    assert torch.allclose(again(VECTORS), expected, atol=1e-5)


def test_learned_leak_of_snntorch_is_read_without_a_warning():
    """Warnings are errors here, but torch issues this one only once per process unless it is asked for all of them."""
    model = ss.stabilize(snntorch(beta=0.7), report=None)
    torch.set_warn_always(True)
    try:
        ss.to_native(model)
    finally:
        torch.set_warn_always(False)
