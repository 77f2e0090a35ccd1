"""The input gradient at needed places only: the same parameter gradients, and the whole one for hooks."""

from __future__ import annotations

import gc
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import steadyspike as ss
from steadyspike.core.surrogate import SURROGATES
from steadyspike.kernels.conv import function
from steadyspike.kernels.spikes.words import count_words
from steadyspike.nn.time import Folded
from tests.kernels.built import ALWAYS, needs_kernel
from tests.kernels.scan_cases import TUNED

pytestmark = needs_kernel
X = torch.randn(3, 4, 8, 8, 8, generator=torch.Generator().manual_seed(1)) * 3


@pytest.fixture
def at_places(monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """The bits of every input gradient that was computed at places only; events run whatever they cost."""
    monkeypatch.setattr(function, "COSTS", dict.fromkeys(function.COSTS, ALWAYS))
    seen: list[Tensor] = []
    original = function.conv_input_gradient

    def counted(geometry, places, g, weight):
        seen.append(places)
        return original(geometry, places, g, weight)

    monkeypatch.setattr(function, "conv_input_gradient", counted)
    return seen


class Block(nn.Module):
    """A neuron whose output goes to a convolution, and in the other kinds to somewhere else too."""

    def __init__(self, kind: str = "plain", **options: object) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.kind = kind
        self.first = Folded(nn.Conv2d(8, 16, 3, padding=1))
        self.lif = ss.LIF(0.8, **options)  # type: ignore[arg-type]
        self.pool = Folded(nn.MaxPool2d(2)) if kind == "pool" else nn.Identity()
        self.second = Folded(nn.Conv2d(16, 16, 3, padding=1))
        self.last = ss.LIF(0.5, **options)  # type: ignore[arg-type]
        ss.use_events(self)

    def forward(self, x: Tensor) -> Tensor:
        s = self.lif(self.first(x))
        y = self.second(self.pool(s))
        return self.last(y + s if self.kind == "residual" else y)


def gradients(model: nn.Module, x: Tensor = X) -> dict[str, Tensor]:
    model.zero_grad()
    x = x.detach().clone().requires_grad_()
    out = model(x)
    (out * torch.linspace(-1, 1, out.numel()).view_as(out)).sum().backward()
    return {"x": x.grad} | {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}  # type: ignore[dict-item]


@pytest.mark.parametrize("kind", ["plain", "residual", "pool"])
@pytest.mark.parametrize("learn", [True, False], ids=["learned", "frozen"])
@pytest.mark.parametrize("gradient", ["trsg", "rs", "as"])
@pytest.mark.parametrize("surrogate", SURROGATES)
def test_all_gradients_are_the_dense_ones(
    at_places: list[Tensor], monkeypatch: pytest.MonkeyPatch, kind: str, learn: bool, gradient: str, surrogate: str
) -> None:
    options = {"gradient": gradient, "surrogate": TUNED[surrogate], "learn": learn, "init": "zero"}
    got = gradients(Block(kind, **options))
    # A surrogate without zeros needs the gradient everywhere, and a pool changes the places: both are dense.
    places = list(at_places)
    assert len(places) == (kind != "pool" and SURROGATES[surrogate].bounded)
    dense = gradients(ss.use_dense(Block(kind, **options)))
    for name, value in dense.items():
        torch.testing.assert_close(got[name], value, rtol=1e-4, atol=1e-5 * float(value.abs().max()), msg=name)
    # The same sums at all places: what the scan does not need does not show in any gradient, to the last bit.
    assert all(0 < int(count_words(words).sum()) < 64 * words.numel() for words in places)
    original = function.conv_input_gradient
    monkeypatch.setattr(
        function, "conv_input_gradient", lambda g, words, *rest: original(g, torch.full_like(words, -1), *rest)
    )
    for name, value in gradients(Block(kind, **options)).items():
        assert torch.equal(got[name], value), name


Look = Callable[[Tensor, Tensor, list[Tensor]], object]
LOOKS: dict[str, Look] = {
    "a hook on the spikes": lambda s, x, seen: s.register_hook(seen.append),
    "a hook on the view": lambda s, x, seen: x.register_hook(seen.append),
    "retain_grad on the spikes": lambda s, x, seen: s.retain_grad(),
    "retain_grad on the view": lambda s, x, seen: x.retain_grad(),
}


def chain() -> tuple[Tensor, Tensor, nn.Conv2d, ss.LIF]:
    torch.manual_seed(0)
    lif, conv = ss.LIF(), ss.use_events(nn.Sequential(nn.Conv2d(8, 16, 3, padding=1)))[0]
    s = lif(X.clone().requires_grad_())
    return s, s.flatten(0, 1), conv, lif  # type: ignore[return-value]


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("look", LOOKS)
def test_whoever_looks_sees_the_whole_gradient(at_places: list[Tensor], look: str, when: str) -> None:
    s, x, conv, _ = chain()
    seen: list[Tensor] = []
    if when == "before":
        LOOKS[look](s, x, seen)
    out = conv(x)
    if when == "after":
        LOOKS[look](s, x, seen)
    retained = s if "spikes" in look else x
    if "hook" in look:
        del s, x, retained  # the hook stays
        gc.collect()
    out.square().sum().backward()
    assert not at_places
    gradient = seen[0] if "hook" in look else retained.grad
    s, x, conv, _ = chain()
    (want,) = torch.autograd.grad(torch.conv2d(x, conv.weight, conv.bias, 1, 1).square().sum(), x)
    torch.testing.assert_close(gradient.view_as(want), want, rtol=1e-4, atol=1e-4)  # type: ignore[union-attr]


def test_autograd_grad_gives_the_whole_gradient(at_places: list[Tensor]) -> None:
    for target in ("spikes", "view", "both"):
        s, x, conv, lif = chain()
        out = conv(x).square().sum()
        expected = {"spikes": [s], "view": [x], "both": [s, conv.weight, lif.k]}[target]
        got = torch.autograd.grad(out, expected)[0]
        (want,) = torch.autograd.grad(torch.conv2d(x, conv.weight, conv.bias, 1, 1).square().sum(), x)
        torch.testing.assert_close(got.view_as(want), want, rtol=1e-4, atol=1e-4)
    assert not at_places


def test_inputs_of_backward(at_places: list[Tensor]) -> None:
    s, x, conv, lif = chain()
    conv(x).square().sum().backward(inputs=[s, conv.weight])
    assert not at_places and s.grad is not None and (s.grad != 0).float().mean() > 0.9
    s, x, conv, lif = chain()
    conv(x).square().sum().backward()
    assert len(at_places) == 1 and lif.k.grad is not None


def test_a_module_hook_sees_the_whole_gradient(at_places: list[Tensor]) -> None:
    seen: list[Tensor] = []
    for model in (Block(), ss.use_dense(Block())):
        model.lif.register_full_backward_hook(lambda m, gi, go: seen.append(go[0]))
        gradients(model)
    assert not at_places
    torch.testing.assert_close(seen[0], seen[1], rtol=1e-4, atol=1e-4)


def test_a_hook_that_was_removed_and_spikes_changed_on_the_way(at_places: list[Tensor]) -> None:
    s, x, conv, _ = chain()
    s.register_hook(lambda g: None).remove()
    conv(x).sum().backward()
    assert len(at_places) == 1
    s, _, conv, _ = chain()
    conv(s.mul(2).flatten(0, 1)).sum().backward()
    s, _, conv, _ = chain()
    s.mul_(2)
    conv(s.flatten(0, 1)).sum().backward()
    assert len(at_places) == 1


@pytest.mark.parametrize("saving", [False, True])
def test_checkpointing_and_save_memory_give_the_same_bits(at_places: list[Tensor], saving: bool) -> None:
    """The neuron is outside of the checkpoint, inside of it, or before its border."""

    class Checkpointed(Block):
        def forward(self, x: Tensor) -> Tensor:
            s = checkpoint(lambda t: self.lif(self.first(t)), x, use_reentrant=False)
            return checkpoint(lambda t: self.last(self.second(t) + t), s, use_reentrant=False)  # type: ignore[no-any-return]

    plain, other = Block("residual", init="zero"), Checkpointed("residual", init="zero")
    if saving:
        ss.save_memory(other)
    want = gradients(plain)
    assert len(at_places) == 1
    got = gradients(other)
    assert len(at_places) == 2
    for name, value in want.items():
        assert torch.equal(got[name], value), name


def test_a_gradient_that_is_not_finite_is_not_lost(at_places: list[Tensor]) -> None:
    model = Block("plain", init="zero")
    x = X.clone().requires_grad_()
    out = model.second(model.lif(model.first(x)))
    g = torch.zeros_like(out)
    g[1, 2, 3, 4, 4] = float("nan")
    out.backward(g)
    dense = ss.use_dense(Block("plain", init="zero"))
    other = X.clone().requires_grad_()
    dense.second(dense.lif(dense.first(other))).backward(g)
    assert x.grad.isnan().any() and torch.equal(x.grad.isnan(), other.grad.isnan())  # type: ignore[union-attr]
