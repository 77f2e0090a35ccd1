"""Ordinary code around the layers of a model that saves memory: the plain model's results, or its errors."""

import copy
import gc
import weakref
from itertools import permutations, product

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import steadyspike as ss
from steadyspike.nn.memory.transform import restore_memory, save_memory
from steadyspike.nn.norm.tdbn import TDBN
from steadyspike.nn.time import Folded
from tests.models.members import images, member


class Net(nn.Module):
    """Two conv-norm-spike layers that a ``body`` runs."""

    def __init__(self, body, **options):
        super().__init__()
        torch.manual_seed(0)
        self.body = body
        self.conv, self.conv2 = (Folded(nn.Conv2d(c, 8, 3, padding=1, bias=False)) for c in (3, 8))
        self.bn, self.bn2, self.fire, self.fire2 = TDBN(8), TDBN(8), ss.LIF(**options), ss.LIF(**options)

    def forward(self, x):
        return self.body(self, x)

    def second(self, s):
        return self.fire2(self.bn2(self.conv2(s)))


class Rounded(torch.autograd.Function):
    """Straight through."""

    @staticmethod
    def forward(ctx, z):
        return z.round()

    @staticmethod
    def backward(ctx, g):
        return g


def z_of(m, x):
    return m.bn(m.conv(x))


def looked_at(m, x):
    z = z_of(m, x)
    with torch.no_grad():
        m.log = float(z.abs().mean())
    return m.fire2(m.bn2(m.conv2(m.fire(z))) + z)


def changed(edit):
    """``edit`` changes the current before the neuron gets it."""

    def body(m, x):
        z = z_of(m, x)
        edit(z)
        return m.second(m.fire(z))

    return body


def quietly(edit):
    def run(z):
        with torch.no_grad():
            edit(z)

    return run


def mapped(f):
    return lambda m, x: m.second(m.fire(f(z_of(m, x))))


def norm_without_gradient(m, x):
    h = m.conv(x)
    with torch.no_grad():
        z = m.bn(h)
    return m.second(m.fire(z))


def neuron_without_gradient(m, x):
    z = z_of(m, x)
    with torch.no_grad():
        s = m.fire(z)
    return m.second(s)


def residual_changed_after_the_add(m, x):
    i = m.conv(x).detach().clone()
    z = z_of(m, x) + i
    i.mul_(0)
    return m.fire(z)


def spikes_changed_after_the_add(m, x):
    s = m.fire(z_of(m, x))
    z = m.bn2(m.conv(x)) + s
    with torch.no_grad():
        s.zero_()
    return m.fire2(z)


def term_changed_before_the_add(m, x):
    a, b = z_of(m, x), m.bn2(m.conv(x))
    with torch.no_grad():
        a[0, 0, 0, 0, 0] = 3
    return m.fire(a + b)


def sum_changed_without_gradient(m, x):
    z = z_of(m, x) + m.bn2(m.conv(x))
    with torch.no_grad():
        z.add_(0.5)
    return m.fire(z)


def added_in_place(m, x):
    z = z_of(m, x)
    z += m.bn2(m.conv(x))
    return m.fire(z)


def hooked(m, x):
    z = z_of(m, x)
    z.register_hook(lambda g: 2 * g)
    return m.second(m.fire(z))


def spikes_changed_past_autograd_between_two_readers(m, x):
    s = m.fire(z_of(m, x))
    first = m.bn2(s)  # keeps s and would be plain's wrong gradient if it were trained
    s.data.mul_(2)
    return m.fire2(first.detach() + m.conv2(s))


def expanded(m, x):
    z = z_of(m, x[:1]).expand(4, *x.shape[1:2], 8, *x.shape[3:])
    return m.second(m.fire(z))


def broadcast(m, x):
    return m.fire(z_of(m, x) + m.bn2(m.conv(x[:1])))


CODE = {
    "nothing special": mapped(lambda z: z),
    "looked at without gradient": looked_at,
    "mul_": changed(lambda z: z.mul_(2)),
    "add_ without gradient": changed(quietly(lambda z: z.add_(0.5))),
    "one element without gradient": changed(quietly(lambda z: z[0, 0, 0, 0, 0].fill_(3))),
    "relu_": changed(F.relu_),
    "item assignment": changed(lambda z: z.__setitem__((slice(None), slice(None), 0), 0)),
    "data": changed(lambda z: z.data.mul_(2)),
    "numpy": changed(lambda z: np.multiply(z.detach().numpy(), 2, out=z.detach().numpy())),
    "a view in place": changed(lambda z: z.flatten().clamp_(-1, 1)),
    "power": mapped(lambda z: z**2),
    "abs": mapped(abs),
    "compare": mapped(lambda z: z * (z > 0) + (z == 0)),
    "divide": mapped(lambda z: 1 / (z + 3)),
    "iterate": mapped(lambda z: torch.stack([step * 2 for step in z])),
    "twice": mapped(lambda z: z + z),
    "three terms": mapped(lambda z: z + z + z),
    "add with alpha": mapped(lambda z: torch.add(z, z, alpha=2)),
    "autograd function": mapped(Rounded.apply),
    "permuted": mapped(lambda z: z.transpose(-1, -2).contiguous().transpose(-1, -2)),
    "norm without gradient": norm_without_gradient,
    "neuron without gradient": neuron_without_gradient,
    "residual changed after the add": residual_changed_after_the_add,
    "spikes changed after the add": spikes_changed_after_the_add,
    "term changed before the add": term_changed_before_the_add,
    "sum changed without gradient": sum_changed_without_gradient,
    "added in place": added_in_place,
    "gradient hook": hooked,
    "spikes changed past autograd": spikes_changed_past_autograd_between_two_readers,
    "expanded": expanded,
    "broadcast": broadcast,
    "shared layers": lambda m, x: m.second(m.second(m.fire(z_of(m, x)))),
    **{
        f"checkpointed {what}, reentrant={reentrant}": body
        for reentrant in (False, True)
        for what, body in {
            "norm": lambda m, x, r=reentrant: m.fire(checkpoint(m.bn, m.conv(x), use_reentrant=r)),
            "conv and norm": lambda m, x, r=reentrant: m.fire(checkpoint(lambda q: z_of(m, q), x, use_reentrant=r)),
            "neuron": lambda m, x, r=reentrant: m.second(checkpoint(m.fire, z_of(m, x), use_reentrant=r)),
            "layer": lambda m, x, r=reentrant: checkpoint(m.second, m.fire(z_of(m, x)), use_reentrant=r),
            "residual": lambda m, x, r=reentrant: checkpoint(
                lambda s: m.fire2(m.bn2(m.conv2(s)) + s), m.fire(z_of(m, x)), use_reentrant=r
            ),
        }.items()
    },
}


def step(model, x):
    """(output, gradients and buffers)"""
    x = x.clone().requires_grad_()
    model.zero_grad()
    out = model(x)
    (out * torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view(out.shape).sin()).sum().backward()
    grads = {"x": x.grad, **{name: p.grad for name, p in model.named_parameters()}}
    return out.detach(), {**grads, **{name: b.clone() for name, b in model.named_buffers()}}


def frames(size=16, dtype=torch.float64):
    return 2 * torch.randn(4, 3, 3, size, size, generator=torch.Generator().manual_seed(1), dtype=dtype)


@pytest.mark.parametrize("code", CODE)
def test_the_same_code_gives_the_same(code):
    plain = Net(CODE[code]).double()
    lean = save_memory(copy.deepcopy(plain))
    for _ in range(2):
        (got, grads), (want, plain_grads) = step(lean, frames()), step(plain, frames())
        assert torch.equal(got, want)
        for name, g in plain_grads.items():
            assert (g is None) == (grads[name] is None), name
            if g is not None:
                torch.testing.assert_close(grads[name], g, rtol=1e-10, atol=1e-10 * (1 + float(g.abs().max())))


@pytest.mark.parametrize("code", [code for code in CODE if code not in ("data", "numpy")])
def test_autograd_s_own_records_suffice(code, monkeypatch):
    """The check of values is for what passes autograd by; everything else shows in the graph and the versions."""
    monkeypatch.setattr("steadyspike.nn.memory.notes.is_sum", lambda x, terms: True)
    test_the_same_code_gives_the_same(code)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_outputs_are_bit_for_bit_those_of_the_plain_model(dtype):
    plain = Net(mapped(lambda z: z)).to(dtype)
    lean = save_memory(copy.deepcopy(plain))
    for _ in range(2):
        (got, grads), (want, plain_grads) = step(lean, frames(dtype=dtype)), step(plain, frames(dtype=dtype))
        assert torch.equal(got, want)
        for name, g in plain_grads.items():
            torch.testing.assert_close(grads[name], g, rtol=1e-2, atol=1e-2 * float(g.abs().max()))


OPTIONS = [None, {}, {"currents": False}, {"spikes": False}]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_parameters_that_moved_before_the_backward_are_an_error(options):
    model = member("resnet19_tiny")
    if options is not None:
        save_memory(model, **options)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    first, second = (model(images("resnet19_tiny", 8)).square().mean() for _ in range(2))
    first.backward()
    optimizer.step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        second.backward()


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("early", [True, False])
def test_a_convolution_output_that_was_changed_in_place_is_an_error(options, early):
    def body(m, x):
        h = m.conv(x)
        z = m.bn(h)
        if early:
            h.mul_(3)
        y = m.fire(z)
        h.mul_(3)
        return y

    model = Net(body)
    if options is not None:
        save_memory(model, **options)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        model(frames(dtype=torch.float32)).sum().backward()


@pytest.mark.parametrize("checked", [True, False])
def test_gradients_that_do_not_need_what_was_changed(checked, monkeypatch):
    """Those of V and tau do not go through the norm, whose input was changed between the norm and the neuron."""
    if not checked:
        monkeypatch.setattr("steadyspike.nn.memory.notes.is_sum", lambda x, terms: True)

    def body(m, x):
        h = m.conv(x)
        z = m.bn(h)
        h.mul_(3)
        return m.fire(z)

    plain = Net(body).double()
    lean = save_memory(copy.deepcopy(plain))
    got, want = (torch.autograd.grad(m(frames()).sum(), [m.fire.k, m.fire.w]) for m in (lean, plain))
    torch.testing.assert_close(got, want)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_an_operator_s_output_that_was_changed_in_place_is_an_error(options):
    def body(m, x):
        e = m.conv(x).exp()
        y = m.fire(m.bn(e))
        with torch.no_grad():
            e.add_(1)
        return y

    model = Net(body)
    if options is not None:
        save_memory(model, **options)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        model(frames(dtype=torch.float32)).sum().backward()


@pytest.mark.parametrize("loss", [torch.sum, lambda out: out.square().sum()])
def test_gradients_of_gradients_are_refused_or_complete(loss):
    plain = Net(mapped(lambda z: z), surrogate="sigmoid", backend="reference").double().eval()

    def second_order(model):
        x = frames(8).requires_grad_()
        (g,) = torch.autograd.grad(loss(model(x)), x, create_graph=True)
        return torch.autograd.grad(g.square().sum(), list(model.parameters()), allow_unused=True)

    want = second_order(plain)
    for g, w in zip(second_order(save_memory(copy.deepcopy(plain), currents=False)), want):
        assert (g is None) == (w is None)
        if w is not None:
            torch.testing.assert_close(g, w)
    with pytest.raises(RuntimeError, match="cannot be differentiated twice"):
        second_order(save_memory(plain))
    x = frames(8).requires_grad_()
    torch.autograd.grad(loss(plain(x)), x, create_graph=True)  # asking for a graph alone is no error


def test_an_output_that_an_operator_keeps_goes_with_the_graph():
    """A hook that keeps the output itself would make a cycle that nobody collects."""
    made = []

    def body(m, x):
        e = m.conv(x).exp()
        made.append(weakref.ref(e))
        return m.fire(m.bn(e))

    model = save_memory(Net(body))
    model(frames(dtype=torch.float32))
    made.clear()
    gc.disable()
    try:
        model(frames(dtype=torch.float32))
        assert made[0]() is None
    finally:
        gc.enable()


def test_what_a_backward_used_is_freed_while_the_loss_lives():
    model = save_memory(Net(mapped(lambda z: z)))
    kept = []
    model.conv.register_forward_hook(lambda m, a, out: kept.append(weakref.ref(out)))
    loss = model(frames(dtype=torch.float32)).sum()
    assert kept[0]() is not None
    loss.backward()
    assert kept[0]() is None


def test_an_empty_batch_and_one_value_per_channel():
    plain = Net(mapped(lambda z: z))
    lean = save_memory(copy.deepcopy(plain))
    empty = torch.randn(4, 0, 3, 8, 8)
    assert lean(empty).shape == plain(empty).shape == (4, 0, 8, 8, 8)
    for model in (plain, lean):
        with pytest.raises(ValueError, match="more than 1 value per channel"):
            model(torch.randn(1, 1, 3, 1, 1))


def test_layouts_that_torch_tells_apart_at_size_one():
    """Two norms of two layouts: the gradient reaches torch's batch norm as it does in the plain model."""

    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.fire = TDBN(4), TDBN(4), ss.LIF()

        def forward(self, pair):
            return self.fire(self.a(pair[0]) + self.b(pair[1]))

    plain = Two().double()
    lean = save_memory(copy.deepcopy(plain))
    for width, *orders in product((3, 1), permutations((2, 3, 4)), permutations((2, 3, 4))):
        inputs = torch.randn(2, 2, 3, 4, 5, width, dtype=torch.float64).unbind(0)
        results = []
        for model in (plain, lean):
            pair = [_in_order(t, order).requires_grad_() for t, order in zip(inputs, orders)]
            (model(pair) * torch.linspace(0, 1, 5 * width).view(5, width)).sum().backward()
            results.append([t.grad for t in pair])
        for g, w in zip(*results):
            torch.testing.assert_close(g, w, rtol=1e-10, atol=1e-12)


def _in_order(x, order):
    """A copy of [T, B, ., ., .] whose last axes lie in memory in this order."""
    order = (0, 1, *order)
    return x.permute(order).contiguous().permute([order.index(i) for i in range(5)])


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore:`torch.jit.trace:DeprecationWarning")
def test_traced():
    plain = Net(mapped(lambda z: z)).eval()
    x = frames(dtype=torch.float32)
    want = plain(2 * x)
    lean = save_memory(plain)
    for grad in (False, True):
        with torch.set_grad_enabled(grad):
            assert torch.equal(torch.jit.trace(lean, x)(2 * x), want)


def test_function_transforms_get_the_plain_model():
    model = Net(mapped(lambda z: z)).eval()
    x, parameters = frames(8, torch.float32), {k: p.detach() for k, p in model.named_parameters()}

    def result(m):
        return torch.func.functional_call(m, parameters, (x,)).sum()

    def attempt(m):
        try:
            return torch.func.grad(lambda p: torch.func.functional_call(m, p, (x,)).sum())(parameters)
        except RuntimeError as error:
            return str(error)

    want, plain = result(model), attempt(model)
    save_memory(model)
    got = attempt(model)  # without a warning, which would be an error here
    assert torch.equal(result(model), want)
    assert type(got) is type(plain)
    if isinstance(plain, str):
        assert got == plain
    else:
        for name in plain:
            torch.testing.assert_close(got[name], plain[name])


def test_a_hook_that_raises_before_the_forward_leaves_everything_in_order():
    model = save_memory(Net(mapped(lambda z: z)))

    def refuse(module, args):
        raise RuntimeError("no")

    handle = model.register_forward_pre_hook(refuse, prepend=True)
    with pytest.raises(RuntimeError, match="no"):  # and no warning, which would be an error of its own
        model(frames(dtype=torch.float32))
    handle.remove()
    model(frames(dtype=torch.float32)).sum().backward()
    assert torch._C._autograd._top_saved_tensors_default_hooks(True) is None
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in restore_memory(model).modules())


@pytest.mark.parametrize("how", ["vmap", "jvp", "forward_ad", "other default device"])
def test_transforms_see_the_plain_model(how: str) -> None:
    """torch.func, forward mode and a default device that is not the model's work on a saved model as on a plain one."""
    from torch.autograd import forward_ad

    torch.manual_seed(0)
    plain = nn.Sequential(ss.nn.time.Folded(nn.Conv2d(2, 4, 3)), TDBN(4), ss.LIF(init="zero")).eval()
    saved = ss.save_memory(copy.deepcopy(plain))
    x, t = torch.randn(3, 2, 2, 6, 6), torch.randn(3, 2, 2, 6, 6)

    def result(model: nn.Module) -> torch.Tensor:
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
