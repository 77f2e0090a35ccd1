"""Everything that runs a model finds out alike whether it takes [B, ...] or [T, B, ...]."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import steadyspike as ss
from steadyspike.deploy.energy import count_operations
from steadyspike.nn.input_convention import find_batch_dim
from steadyspike.nn.norm import TEBN
from steadyspike.nn.time import Folded, repeat_in_time
from tests.deploy.trained import settle

STEPS, BATCH = 4, 4  # equal on purpose: shapes alone cannot tell them apart


class Dense(nn.Module):
    """Linear layers, which take any number of axes; ``encode`` makes the time steps or not."""

    def __init__(self, encode: Callable[[Tensor], Tensor] = lambda x: x, average: bool = False) -> None:
        super().__init__()
        self.a, self.fire, self.o = nn.Linear(4, 8), ss.LIF(0.3), nn.Linear(8, 3)
        self.encode, self.average = encode, average

    def forward(self, x: Tensor) -> Tensor:
        y = self.o(self.fire(self.encode(self.a(x))))
        return y.mean(0) if self.average else y


class Images(nn.Module):
    """The README's kind of network: a static image [B, C, H, W] that the network repeats."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(1, 6, 3, padding=1), nn.BatchNorm2d(6)
        self.fire, self.late, self.head = ss.LIF(0.3), ss.LIF(0.02), nn.Linear(6, 3)
        self.block = Folded(nn.Conv2d(6, 6, 3, 2))

    def forward(self, x: Tensor) -> Tensor:
        spikes = self.fire(repeat_in_time(self.norm(self.stem(x)), STEPS))
        return self.head(self.late(self.block(spikes)).mean((-1, -2)))


class FixedSteps(nn.Module):
    """Takes [T, B, ...] with T = 4 only."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.fire, self.o = nn.Linear(4, 8), ss.LIF(0.3), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.o(self.fire(self.a(x.flatten(0, 1)).view(STEPS, -1, 8)))


def repeated(x: Tensor) -> Tensor:
    return repeat_in_time(x, STEPS)


CASES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], int]] = {
    "frames": (Dense, (STEPS, BATCH, 4), 1),
    "frames of one step": (Dense, (1, BATCH, 4), 1),
    "frames of one sample": (Dense, (STEPS, 1, 4), 1),
    "a static batch": (lambda: Dense(repeated), (BATCH, 4), 0),
    "a static batch of one": (lambda: Dense(repeated), (1, 4), 0),
    "averaged": (lambda: Dense(repeated, average=True), (BATCH, 4), 0),
    "frames, averaged": (lambda: Dense(average=True), (STEPS, BATCH, 4), 1),
    "images": (Images, (BATCH, 1, 8, 8), 0),
    "fixed steps": (FixedSteps, (STEPS, BATCH, 4), 1),
    "a registered network, images": (lambda: ss.models.create("resnet19_tiny", timesteps=4), (3, 3, 16, 16), 0),
    "a registered network, frames": (lambda: ss.models.create("resnet19_tiny", timesteps=4), (4, 3, 3, 16, 16), 1),
}


@pytest.mark.parametrize("name", CASES)
def test_the_axis_is_found_and_the_model_stays_as_it_is(name):
    torch.manual_seed(0)
    make, shape, axis = CASES[name]
    model, x = make(), 3 * torch.rand(shape)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    state = torch.get_rng_state()
    assert find_batch_dim(model, x) == axis and find_batch_dim(model, x, 1 - axis) == 1 - axis
    assert model.training and torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


@pytest.mark.parametrize("name", ["frames", "a static batch", "averaged", "frames, averaged", "images", "fixed steps"])
@torch.no_grad()
def test_fold_check_stream_and_energy_take_the_same_input(name):
    torch.manual_seed(0)
    make, shape, axis = CASES[name]
    x = 3 * torch.rand(shape)
    model = settle(make(), x)
    network = ss.deploy.fold(model, x)
    assert network.graph.input.timed == (axis == 1) and torch.allclose(network(x), model(x), atol=1e-5)
    with torch.enable_grad():
        report = ss.check_model(model, x)
    assert report.ok, str(report)
    assert count_operations(network, [x]).samples == BATCH
    expected = model(x)
    for one in (ss.stream(network), *([] if name == "fixed steps" else [ss.stream(model)])):
        outs = torch.stack([one(frame) for frame in (x if axis else [x] * STEPS)])
        averaged = expected.ndim == 2
        assert torch.allclose(outs.mean(0) if averaged else outs, expected, atol=1e-5)
    decision = ss.stream(network).run(x)
    assert torch.allclose(decision.logits, expected if expected.ndim == 2 else expected.mean(0), atol=1e-5)


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: ss.deploy.fold(Images(), torch.rand(4, 2, 2, 8, 8)), "does not take an example of shape"),
        (lambda: ss.deploy.fold(Images(), torch.rand(4, 3, 8, 8)), "does not take an example of shape"),
        (lambda: ss.stream(Images().eval())(torch.rand(1, 8, 8)), "a stream takes one frame"),
        (lambda: ss.deploy.fold(Images(), torch.rand(4, 1, 8, 8), batch_dim=2), "batch_dim is 0"),
        (lambda: ss.deploy.fold(Images(), torch.rand(0, 1, 8, 8)), "at least one sample"),
        (lambda: ss.stream(FixedSteps().eval())(torch.rand(3, 4)), "a stream takes one frame"),
    ],
)
def test_what_fits_neither_is_one_line(call, named):
    with pytest.raises(ValueError, match=named) as error:
        call()
    assert "\n" not in str(error.value)


class Poisson(nn.Module):
    """Random spikes of a static image: another input at every step and every call."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.fire = nn.Linear(4, 8), ss.LIF(0.3)

    def forward(self, x: Tensor) -> Tensor:
        return self.fire(self.a((torch.rand(STEPS + 1, *x.shape) < x).to(x.dtype)))


def test_a_random_encoder_is_a_static_model_that_cannot_be_streamed():
    model, x = Poisson().eval(), torch.rand(BATCH, 4)
    assert find_batch_dim(model, x) == 0
    with pytest.raises(ValueError, match="5 different time steps for one frame"):
        ss.stream(model, batch_dim=0)(x)


@torch.no_grad()
def test_a_stream_of_images_with_a_norm_per_step_equals_the_batch_call():
    class Normed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.norm = nn.Conv2d(1, 6, 3), TEBN(6, timesteps=STEPS)
            self.fire, self.o = ss.LIF(0.3), nn.Linear(6, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.o(self.fire(self.norm(repeated(self.a(x)))).mean((-1, -2)))

    torch.manual_seed(0)
    x = 3 * torch.rand(BATCH, 1, 6, 6)
    model = settle(Normed(), x)
    for one in (ss.stream(model), ss.stream(ss.deploy.fold(model, x))):
        assert torch.allclose(torch.stack([one(x) for _ in range(STEPS)]), model(x), atol=1e-5)
