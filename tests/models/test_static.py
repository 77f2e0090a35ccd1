"""Static images: the stem is computed once, and means the same as the image repeated."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from steadyspike import models
from steadyspike.models.blocks.conv import ConvNorm
from steadyspike.models.parts import Parts, Shape
from steadyspike.models.wake import wake
from steadyspike.models.weight_init import fire
from steadyspike.nn.time import repeat_in_time
from tests.models.members import TINY, images, member, one_step


def batches_seen(model: nn.Module, x: Tensor) -> dict[str, int]:
    """Samples that each convolution works on in one forward."""
    seen: dict[str, int] = {}
    handles = [
        m.register_forward_pre_hook(lambda m, args, name=name: seen.__setitem__(name, len(args[0])))
        for name, m in model.named_modules()
        if isinstance(m, nn.Conv2d)
    ]
    model(x)
    for handle in handles:
        handle.remove()
    return seen


@pytest.mark.parametrize("name", TINY)
@pytest.mark.parametrize("norm", ["tdbn", "tebn"])
def test_the_stem_convolution_runs_once_per_image(name: str, norm: str) -> None:
    seen = batches_seen(member(name, timesteps=4, norm=norm), images(name, 2))
    assert seen.pop("stem.conv_norm.conv") == 2
    if name == "ms_resnet_tiny" and norm == "tdbn":
        # Its real-valued stream is still the same at every step where the first shortcut reads it.
        assert seen.pop("body.layer1.0.shortcut.conv") == 2
    assert set(seen.values()) == {8}


@pytest.mark.parametrize("name", TINY)
@pytest.mark.parametrize("norm", ["tdbn", "bn", "tebn", "tab", "bntt", "none"])
def test_an_image_equals_its_repetition(name: str, norm: str) -> None:
    options = {"zero_residual": False} if name == "ms_resnet_tiny" else {}
    model = member(name, norm=norm, timesteps=4, **options).double()
    x = images(name).double()
    if norm == "none":
        for part, m in model.named_modules():
            if isinstance(m, (nn.Conv2d, nn.Linear)) and not part.startswith("head"):
                fire(m)  # currents far above the smallest threshold that a neuron may have
        wake(model, x, rate=0.3)  # enough spikes that attention's products of three are not all 0
    for _ in range(3):
        one_step(model, x)
    model.eval()
    with torch.no_grad():
        once = model(x)
        torch.testing.assert_close(once, model(torch.stack([x] * 4)), rtol=1e-9, atol=1e-9)
        assert once.std() > 0


def test_training_gradients_equal_those_of_the_repetition() -> None:
    x = images("resnet19_tiny").double()
    grads = []
    for frames in (x, torch.stack([x] * 4)):
        model = member("resnet19_tiny").double()
        out = model(frames)
        (out * torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view_as(out)).sum().backward()
        grads.append([p.grad for p in model.parameters()])
    for once, repeated in zip(*grads):
        torch.testing.assert_close(once, repeated, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("name", TINY)
def test_trained_at_six_steps_evaluated_at_four(name: str) -> None:
    model = member(name, timesteps=6)
    one_step(model, images(name))
    model.eval()
    with torch.no_grad():
        six, four = model(images(name)), model(images(name), timesteps=4)
    torch.testing.assert_close(six[:4], four, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("norm", ["tdbn", "tebn", "tab", "none"])
def test_conv_norm_keeps_a_repetition_cheap_where_it_can(norm: str) -> None:
    layer = ConvNorm(Parts(norm=norm, timesteps=3), Shape(2, 6, 6), 4)
    y = layer(repeat_in_time(torch.randn(5, 2, 6, 6), 3))
    assert y.shape == (3, 5, 4, 6, 6)
    assert (y.stride(0) == 0) == (norm in ("tdbn", "none"))


def test_a_users_norm_sees_every_step() -> None:
    class Counting(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            self.steps = x.shape[0]
            return x

    layer = ConvNorm(Parts(norm=lambda channels: Counting()), Shape(2, 6, 6), 4)
    layer(repeat_in_time(torch.randn(5, 2, 6, 6), 3))
    assert layer.norm.steps == 3


def test_a_static_image_is_repeated_after_the_first_pooling() -> None:
    """The gradient before a pooling that comes before the neuron has one step, not T of which T - 1 are 0."""
    net = models.create("qkformer_10_384", image_size=32, width=0.0625, heads=2, depth=(1, 1, 1), num_classes=3)
    seen: list[int] = []

    def watch(module: nn.Module, taken: tuple[Tensor, ...], out: Tensor) -> None:
        out.register_hook(lambda grad: seen.append(grad.shape[0]))

    net.get_submodule("stem.conv_norm").register_forward_hook(watch)
    net(torch.randn(2, 3, 32, 32)).mean().backward()
    assert seen == [1]
