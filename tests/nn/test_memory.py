"""save_memory: the same network in less memory - outputs, gradients, statistics, checkpoints, and what is kept."""

import copy
import pickle
from functools import partial

import pytest
import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

import steadyspike as ss
from steadyspike.kernels.scan.choose import get_backend
from steadyspike.nn.checkpointed_forward import checkpoint_region
from steadyspike.nn.memory.norm import NotedTDBN
from steadyspike.nn.memory.track import MemoryTracker
from steadyspike.nn.memory.transform import restore_memory, save_memory
from steadyspike.nn.neurons.integrate import IF
from steadyspike.nn.neurons.mps import MPS
from steadyspike.nn.neurons.plif import PLIF
from steadyspike.nn.norm.tdbn import TDBN
from steadyspike.nn.time import Folded
from tests.models.members import TINY, bfloat16, clip, images, member

TOLERANCE = {torch.float64: 1e-10, torch.float32: 2e-4}


def pair(name, dtype=torch.float64, channels_last=False, **options):
    """The same network twice, plain and saving memory."""
    plain = member(name, **options).to(dtype)
    if channels_last:
        plain = plain.to(memory_format=torch.channels_last)
    return plain, save_memory(copy.deepcopy(plain))


def train_step(model, x):
    """Output, gradients of all parameters and of the input, after one step's worth of statistics."""
    x = x.clone().requires_grad_()
    model.zero_grad()
    out = model(x)
    weight = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view(out.shape).sin()
    (out * weight).sum().backward()
    return {"out": out.detach(), "x": x.grad, **{name: p.grad for name, p in model.named_parameters()}}


def assert_same(got, want, tolerance):
    assert got.keys() == want.keys()
    for name in want:
        if want[name] is None:
            assert got[name] is None, name
            continue
        scale = want[name].abs().max()
        torch.testing.assert_close(got[name], want[name], rtol=0, atol=float(tolerance * (1e-30 + scale)), msg=name)


def assert_same_training(plain, lean, x, tolerance):
    for _ in range(2):
        assert_same(train_step(lean, x), train_step(plain, x), tolerance)
    assert_same(lean.state_dict(), plain.state_dict(), tolerance)


@pytest.mark.parametrize("frames", [False, True])
@pytest.mark.parametrize("name", TINY)
def test_every_network_trains_the_same(name, frames):
    plain, lean = pair(name)
    x = (clip(name, 2, 4) if frames else images(name, 4)).double()
    assert any(isinstance(m, NotedTDBN) for m in lean.modules())
    assert_same_training(plain, lean, x, TOLERANCE[torch.float64])


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("dtype", list(TOLERANCE))
def test_dtypes_and_layouts(dtype, channels_last):
    plain, lean = pair("resnet19_tiny", dtype, channels_last)
    x = images("resnet19_tiny", 16).to(dtype)
    if channels_last:
        x = x.contiguous(memory_format=torch.channels_last)
    assert_same_training(plain, lean, x, TOLERANCE[dtype])


NEURONS = {
    "per channel": lambda site: ss.LIF(channels=site.channels),
    "rs hard arctan": lambda site: ss.LIF(gradient="rs", reset="hard", surrogate="arctan"),
    "as detached": lambda site: ss.LIF(gradient="as", reset=ss.Reset("soft", True)),
    "learned start": lambda site: ss.LIF(init=ss.LearnedInit((site.channels, *site.size))),
    "reference": lambda site: ss.LIF(surrogate="sigmoid", backend="reference"),
    "plif": lambda site: PLIF(),
    "if": lambda site: IF(),
    "own dynamics": lambda site: MPS(),
}


class At:
    def __init__(self, build):
        self.at = build


@pytest.mark.parametrize("neuron", NEURONS)
def test_neurons(neuron):
    plain, lean = pair("resnet19_tiny", neuron=At(NEURONS[neuron]))
    assert_same_training(plain, lean, images("resnet19_tiny", 8).double(), TOLERANCE[torch.float64])


@pytest.mark.parametrize("norm", ["tdbn-scaled", "tdbn-gamma", "bn", "bntt", "tebn", "tab", "none"])
def test_norms_that_defer_and_norms_that_do_not(norm):
    plain, lean = pair("cnn7_tiny", norm=norm)
    assert any(type(m) is NotedTDBN for m in lean.modules()) == norm.startswith("tdbn")
    assert_same_training(plain, lean, images("cnn7_tiny", 8).double(), TOLERANCE[torch.float64])


def test_evaluation_and_its_gradients():
    plain, lean = pair("resnet19_tiny")
    x = images("resnet19_tiny", 4).double()
    assert_same_training(plain, lean, x, TOLERANCE[torch.float64])
    plain.eval(), lean.eval()
    with torch.no_grad():
        torch.testing.assert_close(lean(x), plain(x), rtol=1e-10, atol=1e-10)
    assert_same_training(plain, lean, x, TOLERANCE[torch.float64])


def test_frozen_norms_and_frozen_convolutions():
    plain, lean = pair("resnet19_tiny")
    for model in (plain, lean):
        for m in model.modules():
            if isinstance(m, TDBN):
                m.weight.requires_grad_(False)
            if isinstance(m, nn.Conv2d) and m.in_channels == 3:
                m.weight.requires_grad_(False)
    assert_same_training(plain, lean, images("resnet19_tiny", 4).double(), TOLERANCE[torch.float64])


def test_bfloat16_autocast():
    """The current is rounded to bfloat16 in both; one rounding more or less may flip a spike, so compare loosely."""
    plain, lean = pair("cnn7_tiny", torch.float32)
    x = images("cnn7_tiny", 8)
    with bfloat16():
        want, got = train_step(plain, x), train_step(lean, x)
    for name in want:
        if want[name] is not None:
            assert got[name].dtype == want[name].dtype
            difference = (got[name].double() - want[name].double()).norm() / (1e-12 + want[name].double().norm())
            assert difference < 0.1, (name, difference)


def test_checkpoints_go_both_ways():
    plain, lean = pair("cnn7_tiny")
    train_step(lean, images("cnn7_tiny", 4).double())
    assert list(lean.state_dict()) == list(plain.state_dict())
    plain.load_state_dict(lean.state_dict())
    assert_same(plain.eval().state_dict(), lean.eval().state_dict(), 0.0)


@pytest.mark.parametrize("remake", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m)), lambda m: save_memory(m)])
def test_copies_save_memory_too(remake):
    plain, lean = pair("resnet19_tiny")
    x = images("resnet19_tiny", 16).double()
    lean(x)
    plain(x)
    again = remake(lean)
    assert saved_bytes(again, x) == saved_bytes(lean, x) < 0.6 * saved_bytes(plain, x)


def test_restore_memory():
    plain, lean = pair("resnet19_tiny")
    x = images("resnet19_tiny", 8).double()
    lean(x), plain(x)
    assert restore_memory(lean) is lean
    assert repr(lean) == repr(plain)
    assert saved_bytes(lean, x) == saved_bytes(plain, x)
    assert_same_training(plain, lean, x, TOLERANCE[torch.float64])


def saved_bytes(model, x):
    """What a forward keeps."""
    with MemoryTracker() as tracker:
        for t in (*model.parameters(), *model.buffers(), x):
            tracker.known(t)
        before = tracker.live
        out = model(x)
        kept = tracker.live - before - out.untyped_storage().nbytes()
    return kept


def layer(channels=16, **options):
    torch.manual_seed(0)
    conv = Folded(nn.Conv2d(channels, channels, 3, padding=1, bias=False))
    return nn.Sequential(conv, TDBN(channels), ss.LIF(**options))


# The compiled scan keeps its input; the reference keeps many times more for its gradients.
SCAN_KEEPS_ITS_INPUT = get_backend("cpu").why_not(torch.zeros(1)) is None
BITS = 2 / 32 if SCAN_KEEPS_ITS_INPUT else 0  # of a layer's output in float32


def test_a_layer_keeps_one_tensor_and_the_spikes_as_bits():
    """Two conv-norm-spike layers: y and y' in float32, the spikes between them as bits; the input is the caller's."""
    net = nn.Sequential(*layer(), *layer())
    x = (torch.rand(4, 8, 16, 16, 16) < 0.3).float()
    size = x.nbytes
    plain = saved_bytes(net, x)
    assert plain >= 5 * size  # y, current, spikes, y', current'; the output does not count
    lean = saved_bytes(save_memory(net), x)
    if SCAN_KEEPS_ITS_INPUT:  # the C++ scan writes two bits per neuron: its spikes, and where a gradient is needed
        assert lean == pytest.approx((2 + 2 * BITS) * size, rel=0.01)
    assert 2 * size + size / 32 <= lean < 2.15 * size
    assert saved_bytes(save_memory(net, spikes=False), x) == pytest.approx((3 + 2 * BITS) * size, rel=0.02)
    spikes_only = saved_bytes(save_memory(net, currents=False), x)
    if SCAN_KEEPS_ITS_INPUT:
        assert plain < 5.15 * size
        assert spikes_only == pytest.approx((4 + 2 * BITS) * size, rel=0.02)


class Sum(nn.Module):
    """A residual sum of a norm and a shortcut."""

    def __init__(self, shortcut):
        super().__init__()
        self.a, self.b, self.lif = nn.Sequential(*layer()[:2]), shortcut, ss.LIF()

    def forward(self, x):
        return self.lif(self.a(x) + self.b(x))


def test_a_residual_sum_of_two_norms_keeps_both_outputs_only():
    net, x = Sum(nn.Sequential(*layer()[:2])), torch.randn(4, 8, 16, 16, 16)
    plain = saved_bytes(net, x)
    assert plain == pytest.approx((3 + BITS) * x.nbytes, rel=0.02) if SCAN_KEEPS_ITS_INPUT else plain > 3 * x.nbytes
    assert saved_bytes(save_memory(net), x) == pytest.approx((2 + BITS) * x.nbytes, rel=0.02)


def test_a_residual_sum_of_a_norm_and_spikes_keeps_the_spikes_as_bits():
    net, x = nn.Sequential(*layer(), Sum(nn.Identity())), torch.randn(4, 8, 16, 16, 16)
    lean = saved_bytes(save_memory(net), x)
    bits = 2 * BITS or 1 / 32
    assert lean == pytest.approx((2 + bits) * x.nbytes, rel=0.02)  # both convolutions' outputs, and the spikes


@pytest.mark.parametrize("around", [False, True])
@pytest.mark.parametrize("use_reentrant", [False, True])
def test_with_activation_checkpointing(use_reentrant, around):
    plain, lean = pair("resnet19_tiny")
    x = images("resnet19_tiny", 4).double()
    run = partial(checkpoint, use_reentrant=use_reentrant)

    class Checkpointed(nn.Module):
        def __init__(self, net):
            super().__init__()
            self.net = net

        def forward(self, x):
            if around:
                return run(self.net, x)
            y = self.net.stem(self.net.frames(x))
            for stage in self.net.body:
                y = run(stage, y)
            return self.net.head(y)

    lean = save_memory(Checkpointed(lean)) if not around else Checkpointed(lean)
    assert_same_training(Checkpointed(plain), lean, x, TOLERANCE[torch.float64])
    lean.float()(x.detach().float().requires_grad_()).sum().backward()  # only in float32 does the scan note its spikes


def test_checkpoints_one_after_the_other_are_told_apart():
    """By more than an address, which the next checkpoint may get when the last one is gone."""
    regions = []
    for _ in range(20):
        with saved_tensors_hooks(lambda t: t, lambda t: t):
            regions += [checkpoint_region(), checkpoint_region()]
    assert regions[::2] == regions[1::2] and len(set(regions)) == 20


def test_an_error_in_the_forward_leaves_no_hooks_behind():
    lean = save_memory(nn.Sequential(*layer(), nn.Linear(3, 3)))
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        lean(torch.randn(2, 3, 16, 8, 8))
    assert torch._C._autograd._top_saved_tensors_default_hooks(True) is None


def test_nothing_survives_a_forward_that_is_dropped():
    lean = save_memory(nn.Sequential(*layer(), *layer()))
    x = torch.randn(4, 8, 16, 16, 16)
    with MemoryTracker() as tracker:
        tracker.known(x)
        lean(x)
        assert tracker.live < x.nbytes / 100


def test_spikes_changed_in_place_after_the_convolution_saw_them():
    """The bits are those of the forward, whatever happens to the tensor later."""

    class Edited(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.conv = layer(), Folded(nn.Conv2d(16, 16, 1, bias=False))

        def forward(self, x, edit):
            s = self.first(x)
            y = self.conv(s)
            if edit:
                s.detach().zero_()
            return y

    net = Edited().double()
    x = torch.randn(4, 8, 16, 8, 8, dtype=torch.float64)
    lean = save_memory(copy.deepcopy(net))
    net(x, False).square().sum().backward()
    lean(x, True).square().sum().backward()
    torch.testing.assert_close(lean.conv.layer.weight.grad, net.conv.layer.weight.grad)


def test_health_checks_and_taps_work_on_currents():
    net = save_memory(nn.Sequential(*layer()))
    x = torch.randn(4, 3, 16, 4, 4)
    assert ss.check_model(net, x).ok
    x[2, 0] = float("nan")
    with pytest.raises(ss.HealthError, match="input current is not finite at time step"), ss.health(net):
        net(x)


def test_too_few_values_is_an_error():
    norm = save_memory(nn.Sequential(TDBN(4)))
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        norm(torch.randn(1, 1, 4))


@pytest.mark.slow
def test_compiled():
    plain, lean = pair("cnn7_tiny")
    x = images("cnn7_tiny", 4).double()
    lean.compile(backend="aot_eager")
    assert_same_training(plain, lean, x, TOLERANCE[torch.float64])
