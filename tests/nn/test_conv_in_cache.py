"""`conv_norm_neuron`: evaluation in one call of C++ equals the layers one by one, and steps aside where it must."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import steadyspike as ss
from steadyspike.kernels.conv import function
from steadyspike.models.blocks.conv import ConvNorm
from steadyspike.nn import fused_conv
from steadyspike.nn.factory import Site
from steadyspike.nn.fused_conv import conv_norm_neuron
from steadyspike.nn.initial_potential import InitialPotential
from steadyspike.nn.neuron import Tap, neurons
from steadyspike.nn.norm.tdbn import TDBN
from tests.kernels.built import ALWAYS, needs_kernel

pytestmark = needs_kernel
JOINED = 6  # convolutions of resnet19_tiny that run in one call with their neuron: all except stem and shortcuts


@pytest.fixture(autouse=True)
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Events whatever they cost."""
    monkeypatch.setattr(function, "COSTS", dict.fromkeys(function.COSTS, ALWAYS))


@pytest.fixture
def joined(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Grows with every convolution that runs in one call with its neuron."""
    calls: list[object] = []
    original = fused_conv.forward_layer

    def counted(neuron, y, norms, source):
        calls.append(neuron)
        return original(neuron, y, norms, source)

    monkeypatch.setattr(fused_conv, "forward_layer", counted)
    return calls


def apart(run: Callable[[], Tensor]) -> Tensor:
    """The result with the convolution's output in memory."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fused_conv, "stays_in_cache", lambda *args: False)
        return run()


def network(name: str = "resnet19_tiny", steps: int = 3, **options: object) -> tuple[nn.Module, Tensor]:
    """In evaluation, after a step that gave its norms and its neurons statistics."""
    torch.manual_seed(0)
    model = ss.models.create(name, timesteps=steps, **options).to(memory_format=torch.channels_last)  # type: ignore[arg-type]
    x = torch.rand(4, 3, 16, 16).contiguous(memory_format=torch.channels_last)
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(1 + 0.2 * torch.rand_like(p))
        for _ in range(3):
            model(x)
    return model.eval(), x


@torch.no_grad()
@pytest.mark.parametrize("steps", range(1, 9))
def test_networks_for_every_number_of_steps(joined: list[object], steps: int) -> None:
    model, x = network(steps=steps)
    out = model(x)
    assert len(joined) == JOINED
    assert torch.equal(out, apart(lambda: model(x)))
    assert torch.equal(out[:, :1], model(x[:1]))


@torch.no_grad()
@pytest.mark.parametrize("norm", ["tdbn", "bn", "tebn", "bntt", "tab"])
@pytest.mark.parametrize("gradient", ["trsg", "as"])
def test_norms_and_neurons(joined: list[object], norm: str, gradient: str) -> None:
    class PerChannel:
        def at(self, site: Site) -> nn.Module:
            return ss.LIF(channels=site.channels, gradient=gradient)

    model, x = network(norm=norm, neuron=PerChannel())
    for neuron in neurons(model).values():
        neuron.raw_constant("threshold")[0].add_(torch.rand(neuron.channels) / 5)
    out = model(x)
    assert len(joined) == JOINED
    assert torch.equal(out, apart(lambda: model(x)))


@torch.no_grad()
@pytest.mark.parametrize("name", ["vgg9_tiny", "sew_resnet34_tiny", "ms_resnet_tiny", "spikformer_tiny"])
def test_other_networks(joined: list[object], name: str) -> None:
    model, x = network(name)
    assert torch.equal(model(x), apart(lambda: model(x)))
    assert joined


@torch.no_grad()
def test_inference_mode(joined: list[object]) -> None:
    model, x = network()
    expected = apart(lambda: model(x))
    fused_conv._without_values.cache_clear()
    with torch.inference_mode():
        assert torch.equal(model(x), expected)
    assert torch.equal(model(x), expected)
    assert len(joined) == 2 * JOINED


@torch.no_grad()
def test_a_contiguous_network_keeps_the_output_in_memory(joined: list[object]) -> None:
    model, x = network()
    expected = model(x)
    model, x, joined[:] = model.to(memory_format=torch.contiguous_format), x.contiguous(), []
    torch.testing.assert_close(model(x), expected)
    assert not joined


def layers(norm: bool = True) -> tuple[ConvNorm | nn.ModuleDict, Tensor]:
    torch.manual_seed(0)
    parts = nn.ModuleDict(
        {"conv": nn.Conv2d(16, 16, 3, padding=1), "norm": TDBN(16) if norm else nn.Identity(), "neuron": ss.LIF()}
    ).eval()
    with torch.no_grad():
        parts["conv"].weight.mul_(6)
    spikes = (torch.rand(12, 16, 8, 8) < 0.2).float().contiguous(memory_format=torch.channels_last)
    return ss.use_events(parts), spikes.unflatten(0, (4, 3))


def run(parts: nn.ModuleDict, x: Tensor, extra: Tensor | None = None) -> Tensor:
    return conv_norm_neuron(parts["conv"], parts["norm"], parts["neuron"], x, extra)


@torch.no_grad()
@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("norm", [False, True])
def test_layers_with_and_without_a_norm(joined: list[object], norm: bool, residual: bool) -> None:
    parts, x = layers(norm)
    extra = x * 0.5 if residual else None
    out = run(parts, x, extra)
    assert out.any() and torch.equal(out, apart(lambda: run(parts, x, extra)))
    assert len(joined) == (norm or not residual)


def hook(*args: object) -> None: ...


def observe_all(parts: nn.ModuleDict) -> None:
    parts["neuron"].taps["test"] = Tap(lambda *args: None, current=True)


OBSERVERS: dict[str, Callable[[nn.ModuleDict], object]] = {
    "a hook on the convolution": lambda parts: parts["conv"].register_forward_hook(hook),
    "a pre-hook on the convolution": lambda parts: parts["conv"].register_forward_pre_hook(hook),
    "a hook on the norm": lambda parts: parts["norm"].register_forward_hook(hook),
    "a hook on the neuron": lambda parts: parts["neuron"].register_forward_hook(hook),
    "a pre-hook on the neuron": lambda parts: parts["neuron"].register_forward_pre_hook(hook),
    "a tap": observe_all,
    "a convolution in training": lambda parts: parts["conv"].train(),
    "a norm in training": lambda parts: parts["norm"].train(),
    "a neuron in training": lambda parts: parts["neuron"].train(),
    "a forward of its own": lambda parts: setattr(parts["conv"], "forward", parts["conv"].dense),
    "a dense convolution": ss.use_dense,
    "another backend": lambda parts: setattr(parts["neuron"], "backend", "reference"),
}


@torch.no_grad()
@pytest.mark.parametrize("observer", OBSERVERS)
def test_what_observes_a_layer_gets_its_values(joined: list[object], observer: str) -> None:
    parts, x = layers()
    observed = copy.deepcopy(parts)
    OBSERVERS[observer](observed)
    out = run(observed, x)
    assert not joined
    if "training" not in observer and "reference" not in str(observed["neuron"].backend):
        torch.testing.assert_close(out, run(parts, x))


@torch.no_grad()
def test_a_global_hook_is_called(joined: list[object]) -> None:
    parts, x = layers()
    seen: list[object] = []
    handle = nn.modules.module.register_module_forward_hook(lambda module, *args: seen.append(type(module)))
    try:
        run(parts, x)
    finally:
        handle.remove()
    assert not joined and ss.LIF in seen and TDBN in seen


def test_gradients_compilers_autocast_and_transforms_use_the_layers(joined: list[object]) -> None:
    parts, x = layers()
    assert run(parts, x).grad_fn is not None
    with torch.no_grad():
        expected = apart(lambda: run(parts, x))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert run(parts, x).shape == expected.shape
        each = torch.func.vmap(lambda image: run(parts, image.unsqueeze(1)), in_dims=1, out_dims=1)(x)
        torch.testing.assert_close(each.squeeze(2), expected)
        compiled = torch.compile(lambda x: run(parts, x), backend="eager", fullgraph=True)
        torch.testing.assert_close(compiled(x), expected)
    assert not joined


@torch.no_grad()
def test_an_input_that_is_not_spikes_and_a_weight_that_is_not_finite(joined: list[object]) -> None:
    parts, x = layers()
    numbers = x * torch.rand_like(x)
    torch.testing.assert_close(run(parts, numbers), parts["neuron"](parts["norm"](_dense(parts, numbers))))
    parts["conv"].weight[0, 0, 0, 0] = float("inf")
    run(parts, x)
    assert not joined


def _dense(parts: nn.ModuleDict, x: Tensor) -> Tensor:
    return parts["conv"].dense(x.flatten(0, 1)).unflatten(0, x.shape[:2])


@torch.no_grad()
def test_a_batch_without_images(joined: list[object]) -> None:
    parts, x = layers()
    assert run(parts, x[:, :0]).shape == (4, 0, 16, 8, 8) and not joined


@torch.no_grad()
def test_a_neuron_that_reads_its_input_to_start(joined: list[object]) -> None:
    class FromInput(InitialPotential):
        def potential(self, x: Tensor) -> Tensor:
            return x[0].mean().view(1)

    parts, x = layers()
    parts["neuron"].init = FromInput()
    out = run(parts, x)
    assert not joined and torch.equal(out, apart(lambda: run(parts, x)))


@torch.no_grad()
def test_a_residual_with_another_memory_order(joined: list[object]) -> None:
    parts, x = layers()
    extra = (x * 0.5).contiguous()
    assert extra.stride() != x.stride()
    assert torch.equal(run(parts, x, extra), apart(lambda: run(parts, x, extra)))
    assert not joined
