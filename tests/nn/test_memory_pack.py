"""save_memory: spikes that autograd keeps are bits; outputs, gradients, statistics and checkpoints stay the same."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref
from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.utils.checkpoint import checkpoint

import steadyspike as ss
from steadyspike.core.torch_private import saved_tensor_hooks
from steadyspike.nn.memory.pack import restore_memory, save_memory
from steadyspike.nn.memory.track import MemoryTracker
from steadyspike.nn.norm.tdbn import TDBN
from steadyspike.nn.time import Folded
from tests.models.members import TINY, images, member


class Lambda(nn.Module):
    """Calls a function of its layers."""

    def __init__(self, body: Callable[[nn.Module, Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.bn, self.fire = Folded(nn.Conv2d(16, 16, 3, padding=1, bias=False)), TDBN(16), ss.LIF()
        self.body = body

    def forward(self, x: Tensor) -> Tensor:
        return self.body(self, x)


def layers(count: int = 2) -> nn.Sequential:
    torch.manual_seed(0)
    parts: list[nn.Module] = []
    for _ in range(count):
        parts += [Folded(nn.Conv2d(16, 16, 3, padding=1, bias=False)), TDBN(16), ss.LIF()]
    return nn.Sequential(*parts)


def frames(*shape: int) -> Tensor:
    return torch.randn(*(shape or (4, 8, 16, 8, 8)), generator=torch.Generator().manual_seed(0))


def step(model: nn.Module, x: Tensor) -> dict[str, Tensor | None]:
    """Output, and gradients of the input and all parameters."""
    x = x.clone().requires_grad_()
    model.zero_grad()
    out = model(x)
    (out * torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view(out.shape).sin()).sum().backward()
    return {"out": out.detach(), "x": x.grad, **{name: p.grad for name, p in model.named_parameters()}}


def assert_same(plain: nn.Module, lean: nn.Module, x: Tensor) -> None:
    for _ in range(2):
        got, want = step(lean, x), step(plain, x)
        for name, value in want.items():
            assert (got[name] is None) == (value is None), name
            assert value is None or torch.equal(got[name], value), name  # type: ignore[arg-type]
    for name, value in plain.state_dict().items():
        assert torch.equal(lean.state_dict()[name], value), name


def saved_bytes(model: nn.Module, x: Tensor) -> int:
    """What a forward keeps."""
    with MemoryTracker() as tracker:
        for t in (*model.parameters(), *model.buffers(), x):
            tracker.ignore(t)
        before = tracker.live
        out = model(x)
        return tracker.live - before - out.untyped_storage().nbytes()


@pytest.mark.parametrize("name", TINY)
def test_every_network_trains_the_same_to_the_last_bit(name: str) -> None:
    plain = member(name)
    assert_same(plain, save_memory(copy.deepcopy(plain)), images(name, 4))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("channels", [None, 16])
def test_dtypes_and_levels_per_channel(dtype: torch.dtype, channels: int | None) -> None:
    threshold = torch.linspace(0.3, 0.6, 16).tolist() if channels else 0.4
    plain = nn.Sequential(*layers(1), ss.LIF(threshold, channels=channels), Folded(nn.Conv2d(16, 8, 1))).to(dtype)
    lean = save_memory(copy.deepcopy(plain))
    x = frames().to(dtype)
    assert_same(plain, lean, x)
    assert saved_bytes(lean, x) < saved_bytes(plain, x) - 1.5 * x.nbytes


@pytest.mark.parametrize("layer", [nn.Conv2d(16, 16, 3), nn.Conv2d(16, 16, 3, groups=4), nn.MaxPool2d(2)])
def test_spikes_are_kept_as_bits_whatever_keeps_them(layer: nn.Module) -> None:
    """Also those behind a pooling, which no scan has packed."""
    net = nn.Sequential(ss.LIF(), Folded(layer), Folded(nn.Conv2d(16, 4, 1)))
    x = frames(4, 8, 16, 16, 16)
    plain = saved_bytes(net, x)
    assert saved_bytes(save_memory(net), x) <= plain - 0.9 * x.nbytes


@pytest.mark.parametrize("remake", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m)), save_memory])
def test_copies_save_memory_too(remake: Callable[[nn.Module], nn.Module]) -> None:
    plain, x = layers(3), frames()
    lean = save_memory(copy.deepcopy(plain))
    plain(x), lean(x)
    assert saved_bytes(remake(lean), x) == saved_bytes(lean, x) < 0.85 * saved_bytes(plain, x)


def test_restore_memory() -> None:
    plain, x = layers(), frames()
    lean = save_memory(copy.deepcopy(plain))
    plain(x), lean(x)
    assert restore_memory(lean) is lean and saved_bytes(lean, x) == saved_bytes(plain, x)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in lean.modules())


@pytest.mark.parametrize("around", [False, True])
@pytest.mark.parametrize("use_reentrant", [False, True])
def test_with_activation_checkpointing(use_reentrant: bool, around: bool) -> None:
    run = partial(checkpoint, use_reentrant=use_reentrant)

    def body(m: nn.Module, x: Tensor) -> Tensor:
        return run(lambda x: m.fire(m.bn(m.conv(x))), m.fire(x))

    plain = Lambda(body)
    lean = save_memory(copy.deepcopy(plain))
    if around:
        plain.body = lean.body = lambda m, x: m.fire(m.bn(m.conv(m.fire(x))))
        plain, lean = nn.Sequential(plain), nn.Sequential(lean)
        for outer in (plain, lean):
            outer.forward = partial(run, outer[0])  # type: ignore[method-assign]
    assert_same(plain, lean, frames())


def test_errors_leave_no_hooks_behind() -> None:
    lean = save_memory(nn.Sequential(*layers(1), nn.Linear(3, 3)))
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        lean(frames())
    assert saved_tensor_hooks() is None

    def refuse(module: nn.Module, args: object) -> None:
        raise RuntimeError("no")

    model = save_memory(layers())
    handle = model.register_forward_pre_hook(refuse, prepend=True)
    with pytest.raises(RuntimeError, match="no"):
        model(frames())
    handle.remove()
    model(frames()).sum().backward()
    assert saved_tensor_hooks() is None


def test_nothing_survives_a_forward_that_is_dropped() -> None:
    lean, x = save_memory(layers()), frames()
    with MemoryTracker() as tracker:
        tracker.ignore(x)
        lean(x)
        assert tracker.live < x.nbytes / 50


def test_spikes_changed_in_place_after_the_convolution_saw_them() -> None:
    """The bits are those of the forward, whatever happens to the tensor later."""

    def edited(m: nn.Module, x: Tensor) -> Tensor:
        s = m.fire(x)
        y = m.conv(s)
        s.detach().zero_()
        return y

    plain, lean = Lambda(lambda m, x: m.conv(m.fire(x))), save_memory(Lambda(edited))
    for model in (plain, lean):
        model(frames()).square().sum().backward()
    torch.testing.assert_close(lean.conv.layer.weight.grad, plain.conv.layer.weight.grad)


@pytest.mark.parametrize("lean", [False, True])
def test_what_else_was_changed_in_place_is_an_error(lean: bool) -> None:
    def edited(m: nn.Module, x: Tensor) -> Tensor:
        h = m.conv(x)
        y = m.fire(m.bn(h))
        h.mul_(3)
        return y

    model = Lambda(edited)
    model = save_memory(model) if lean else model
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        model(frames()).sum().backward()


def test_an_output_that_an_operator_keeps_goes_with_the_graph() -> None:
    """A hook that keeps the output itself would make a cycle that the collector does not see."""
    made: list[weakref.ref[Tensor]] = []

    def body(m: nn.Module, x: Tensor) -> Tensor:
        e = m.conv(x).exp()
        made.append(weakref.ref(e))
        return m.fire(m.bn(e))

    model = save_memory(Lambda(body))
    gc.disable()
    try:
        model(frames())
        assert made[0]() is None
    finally:
        gc.enable()


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("how", ["trace", "vmap", "jvp", "forward_ad", "other default device"])
def test_transforms_see_the_plain_model(how: str) -> None:
    torch.manual_seed(0)
    plain = nn.Sequential(Folded(nn.Conv2d(2, 4, 3)), TDBN(4), ss.LIF(init="zero")).eval()
    saved = save_memory(copy.deepcopy(plain))
    x, t = torch.randn(3, 2, 2, 6, 6), torch.randn(3, 2, 2, 6, 6)

    def result(model: nn.Module) -> Tensor:
        if how == "trace":
            return torch.jit.trace(model, x)(2 * x)
        if how == "vmap":
            return torch.func.vmap(model)(x[None])
        if how == "jvp":
            return torch.func.jvp(model, (x,), (t,))[1]
        if how == "forward_ad":
            with forward_ad.dual_level():
                return forward_ad.unpack_dual(model(forward_ad.make_dual(x, t))).tangent
        leaf = x.clone().requires_grad_()
        with torch.device("meta"):
            model(leaf).sum().backward()
        return leaf.grad  # type: ignore[return-value]

    torch.testing.assert_close(result(saved), result(plain))


@pytest.mark.slow
def test_compiled() -> None:
    plain = layers()
    lean = save_memory(copy.deepcopy(plain))
    lean.compile(backend="aot_eager")
    want, got = step(plain, frames()), step(lean, frames())
    for name, value in want.items():
        torch.testing.assert_close(got[name], value, rtol=1e-4, atol=1e-5, msg=name)
