"""Norms over [T, B, C, ...]: each against its definition, its running statistics, its limits in T."""

from __future__ import annotations

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from steadyspike.nn.groups import no_decay_names
from steadyspike.nn.norm import BNTT, NORMS, TAB, TDBN, TEBN, make_norm

T, B, C = 4, 5, 3
NAMES = list(NORMS)
PER_STEP = [name for name, info in NORMS.items() if info.per_step]
SHAPES = {"conv": (T, B, C, 6, 4), "linear": (T, B, C), "sequence": (T, B, C, 7)}


def current(shape: tuple[int, ...] = SHAPES["conv"], dtype: torch.dtype = torch.float64, seed: int = 0) -> Tensor:
    """Input with another mean and spread at every step and channel, so that axes cannot be confused."""
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, generator=g, dtype=dtype)
    steps = torch.arange(1, shape[0] + 1, dtype=dtype).view(-1, 1, 1, *([1] * (len(shape) - 3)))
    channels = torch.arange(1, shape[2] + 1, dtype=dtype).view(1, 1, -1, *([1] * (len(shape) - 3)))
    return x * steps.sqrt() + 0.5 * steps * channels


def norm_with_values(name: str, dtype: torch.dtype = torch.float64) -> nn.Module:
    """A norm whose parameters are not at their start, so that a swapped index shows."""
    norm = make_norm(name, C, timesteps=T, threshold=0.7, alpha=1 / math.sqrt(2)).to(dtype)
    g = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in norm.parameters():
            p.copy_(torch.rand(p.shape, generator=g, dtype=dtype) + 0.5)
    return norm


def definition(name: str, norm: nn.Module, x: Tensor) -> Tensor:
    """The norm in training mode as its paper writes it, step by step, without a shared line of code."""

    def standard(values: Tensor, expected: Tensor, eps: float) -> Tensor:
        axes = [i for i in range(values.ndim) if i != values.ndim - expected.ndim + 1]
        mean = values.mean(axes)
        var = ((values - per_channel(mean, expected)) ** 2).mean(axes)
        return (expected - per_channel(mean, expected)) / (per_channel(var, expected) + eps).sqrt()

    def per_channel(p: Tensor, like: Tensor) -> Tensor:
        return p.view(1, -1, *([1] * (like.ndim - 2)))

    out = []
    for t in range(x.shape[0]):
        step = x[t]
        if name.startswith("tdbn"):
            factor = 0.7 / math.sqrt(2) if name == "tdbn-scaled" else 1.0
            y = factor * standard(x, step, 1e-5) * per_channel(norm.weight, step) + per_channel(norm.bias, step)
        elif name == "bn":
            y = standard(step, step, 1e-5) * per_channel(norm.weight, step) + per_channel(norm.bias, step)
        elif name == "bntt":
            y = standard(step, step, 1e-4) * per_channel(norm.weight[t], step)
        elif name == "tebn":
            y = standard(x, step, 1e-5) * per_channel(norm.weight, step) + per_channel(norm.bias, step)
            y = norm.p[t] * y
        elif name == "tab":
            y = standard(x[: t + 1], step, 1e-5) * per_channel(norm.weight[t], step) + per_channel(norm.bias[t], step)
            y = norm.p[t] ** 2 * y
        else:
            y = step
        out.append(y)
    return torch.stack(out)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("name", NAMES)
def test_output_and_every_gradient_follow_the_definition(name: str, shape: tuple[int, ...]) -> None:
    norm = norm_with_values(name)
    weights = torch.randn(shape, dtype=torch.float64)
    results = []
    for run in (norm, lambda x: definition(name, norm, x)):
        x = current(shape).requires_grad_()
        norm.zero_grad()
        y = run(x)
        (y * weights).sum().backward()
        results.append([y.detach(), x.grad, *[p.grad.clone() for p in norm.parameters()]])
    for got, expected in zip(*results):
        torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", [n for n in NAMES if n != "none"])
def test_running_statistics_follow_torch_batch_norm(name: str) -> None:
    norm, x = norm_with_values(name), current()
    twin = [nn.BatchNorm2d(C, eps=norm.eps).double() for _ in range(T)]
    for _ in range(3):
        norm(x)
        for t in range(T):
            if name.startswith("tdbn") or name == "tebn":
                seen = x.flatten(0, 1) if t == 0 else None
            elif name == "tab":
                seen = x[: t + 1].flatten(0, 1)
            else:
                seen = x[t]
            if seen is not None:
                (twin[0] if name == "bn" else twin[t])(seen)
    expected = twin[:1] if norm.running_mean.ndim == 1 else twin
    shape = norm.running_mean.shape
    torch.testing.assert_close(norm.running_mean, torch.stack([b.running_mean for b in expected]).view(shape))
    torch.testing.assert_close(norm.running_var, torch.stack([b.running_var for b in expected]).view(shape))
    assert norm.num_batches_tracked == 3


@pytest.mark.parametrize("name", [n for n in NAMES if n != "none"])
def test_evaluation_uses_running_statistics_and_changes_nothing(name: str) -> None:
    norm, x = norm_with_values(name), current()
    norm(x)
    norm.eval()
    before = copy.deepcopy(norm.state_dict())
    alone = torch.cat([norm(x[:, b : b + 1]) for b in range(B)], dim=1)
    torch.testing.assert_close(norm(x), alone)
    for key, value in norm.state_dict().items():
        assert torch.equal(value, before[key]), key


@pytest.mark.parametrize("name", [n for n in NAMES if n != "none"])
def test_checkpointing_moves_running_statistics_once(name: str) -> None:
    norm, x = norm_with_values(name), current().requires_grad_()
    other = copy.deepcopy(norm)
    plain = norm(x)
    plain.square().sum().backward()
    y = x.detach().clone().requires_grad_()
    again = checkpoint(other, y, use_reentrant=False)
    again.square().sum().backward()
    torch.testing.assert_close(y.grad, x.grad)
    for (key, a), b in zip(norm.state_dict().items(), other.state_dict().values()):
        assert torch.equal(a, b), key


@pytest.mark.parametrize("name", [n for n in NAMES if n not in ("none", "tdbn-scaled", "tdbn-gamma")])
def test_compiled_norms_under_a_checkpoint_refuse_to_move_twice(name: str) -> None:
    torch._dynamo.reset()
    norm, x = norm_with_values(name), current().requires_grad_()
    compiled = torch.compile(norm, backend="aot_eager", fullgraph=True)
    out = checkpoint(compiled, x, use_reentrant=False)
    with pytest.raises(RuntimeError, match="recomputes a compiled layer whose running statistics"):
        out.square().sum().backward()


def torch_moves_statistics_twice() -> bool:
    """Old versions of torch (2.8) run a checkpointed part of a compiled function again, with its changes of buffers."""
    plain = nn.BatchNorm1d(3)
    run = torch.compile(lambda z: checkpoint(plain, z, use_reentrant=False), backend="aot_eager")
    run(torch.randn(5, 3, requires_grad=True)).sum().backward()
    return int(plain.num_batches_tracked) == 2


@pytest.mark.parametrize("name", ["tdbn", "bn", "tab"])
def test_a_compiled_function_that_checkpoints_moves_statistics_once(name: str) -> None:
    torch._dynamo.reset()
    norm, x = norm_with_values(name), current().requires_grad_()
    other = copy.deepcopy(norm)
    norm(x).square().sum().backward()
    y = x.detach().clone().requires_grad_()
    run = torch.compile(lambda z: checkpoint(other, z, use_reentrant=False), backend="aot_eager")
    if torch_moves_statistics_twice():
        with pytest.raises(RuntimeError, match="recomputes a compiled layer whose running statistics"):
            run(y).square().sum().backward()
        return
    run(y).square().sum().backward()
    torch.testing.assert_close(y.grad, x.grad)
    for (key, a), b in zip(norm.state_dict().items(), other.state_dict().values()):
        torch.testing.assert_close(b, a, msg=lambda text, key=key: f"{key}: {text}")


@pytest.mark.parametrize("name", PER_STEP)
def test_per_step_norms_refuse_what_their_parameters_do_not_cover(name: str) -> None:
    norm, x = norm_with_values(name), current()
    with pytest.raises(ValueError, match="cannot run 5"):
        norm(torch.cat([x, x[:1]]))
    with pytest.raises(ValueError, match="trained on 2"):
        norm(x[:2])
    norm(x)
    norm.eval()
    torch.testing.assert_close(norm(x[:2]), norm(x)[:2])
    with pytest.raises(ValueError, match="cannot run 5"):
        norm(torch.cat([x, x[:1]]))


def test_norms_with_shared_parameters_take_any_number_of_steps() -> None:
    for name in NAMES:
        if name not in PER_STEP:
            norm = norm_with_values(name)
            assert norm(current((7, B, C, 2, 2))).shape[0] == 7
            assert norm(current((1, B, C, 2, 2))).shape[0] == 1


def test_tdbn_variants_start_equal_and_the_plain_one_ignores_the_threshold() -> None:
    x = current()
    scaled, gamma = (make_norm(n, C, threshold=0.5, alpha=0.7).double() for n in ("tdbn-scaled", "tdbn-gamma"))
    plain = make_norm("tdbn", C, threshold=0.5, alpha=0.7).double()
    torch.testing.assert_close(scaled(x), gamma(x))
    torch.testing.assert_close(0.35 * plain(x), gamma(x))
    assert float(gamma.weight.detach()[0]) == pytest.approx(0.35)
    assert float(scaled.weight.detach()[0]) == 1.0


def test_tdbn_keeps_channels_last_and_matches_torch_bit_for_bit() -> None:
    x = torch.randn(T * B, C, 8, 8).to(memory_format=torch.channels_last)
    norm, twin = TDBN(C), nn.BatchNorm2d(C)
    y = norm(x.unflatten(0, (T, B)))
    assert y.flatten(0, 1).is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(y.flatten(0, 1), twin(x))
    assert set(norm.state_dict()) == set(twin.state_dict())


def test_tab_survives_a_mean_far_above_the_spread() -> None:
    """Sums of squares would lose every digit here: mean 1e4, spread 1, float32."""
    x = torch.randn(T, 64, C) + 1e4
    norm = TAB(C, T)
    expected = definition("tab", copy.deepcopy(norm).double(), x.double())
    torch.testing.assert_close(norm(x).double(), expected, rtol=0, atol=5e-3)


@pytest.mark.parametrize("name", NAMES)
def test_half_precision_input_gives_its_own_dtype(name: str) -> None:
    norm = norm_with_values(name, torch.float32)
    x = current(dtype=torch.float32)
    y = norm(x.bfloat16())
    assert y.dtype == torch.bfloat16
    torch.testing.assert_close(y.float(), norm(x), rtol=0.05, atol=0.1)


@pytest.mark.parametrize("name", [n for n in NAMES if n != "none"])
def test_wrong_input_is_refused_with_the_axes_named(name: str) -> None:
    norm = norm_with_values(name)
    with pytest.raises(ValueError, match="channels on axis 2"):
        norm(torch.randn(T, C, B, 4))
    with pytest.raises(TypeError, match="floating-point"):
        norm(torch.zeros(T, B, C, dtype=torch.long))
    with pytest.raises(ValueError, match="at least one time step"):
        norm.eval()(torch.zeros(0, B, C, 2, 2, dtype=torch.float64))


@pytest.mark.parametrize("name", [n for n in NAMES if n not in ("none", "tebn")])
def test_one_value_per_channel_has_no_variance(name: str) -> None:
    steps = T if name in PER_STEP else 1
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        norm_with_values(name)(torch.randn(steps, 1, C, dtype=torch.float64))


def test_make_norm_explains_itself() -> None:
    with pytest.raises(ValueError, match="unknown norm 'xyz'; known: tdbn"):
        make_norm("xyz", C)
    with pytest.raises(ValueError, match="'tab' has parameters per time step: give timesteps"):
        make_norm("tab", C)
    for name in ("tdbn-scaled", "tdbn-gamma"):
        with pytest.raises(ValueError, match="needs threshold"):
            make_norm(name, C)
    with pytest.raises(TypeError, match="needs several"):
        make_norm(TDBN(C), C)
    with pytest.raises(TypeError, match="got None"):
        make_norm(None, C)
    with pytest.raises(ValueError, match="inside the neuron"):
        make_norm("mpbn", C)
    with pytest.raises(ValueError, match="known: none, factor, gamma"):
        TDBN(C, "alpha")
    with pytest.raises(ValueError, match="timesteps"):
        BNTT(C, 0)
    assert isinstance(make_norm(lambda c: nn.GroupNorm(1, c), C), nn.GroupNorm)


def test_step_weights_are_exempt_from_weight_decay() -> None:
    net = nn.Sequential(TEBN(C, T), TAB(C, T), TDBN(C))
    assert no_decay_names(net) == {"0.p", "1.p"}


def test_bntt_with_bias_is_t_batch_norms() -> None:
    norm, x = BNTT(C, T, bias=True).double(), current()
    with torch.no_grad():
        norm.bias.normal_()
    expected = [F.batch_norm(x[t], None, None, norm.weight[t], norm.bias[t], True, eps=1e-4) for t in range(T)]
    torch.testing.assert_close(norm(x), torch.stack(expected))


@pytest.mark.parametrize("momentum", [None, 0.0, 1.5, math.nan])
def test_a_momentum_that_is_no_weight_is_refused_by_name(momentum: float) -> None:
    with pytest.raises(ValueError, match="momentum is the weight of the new batch"):
        TDBN(C, momentum=momentum)


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", [name for name in NORMS if name != "none"])
def test_gradients_of_one_image_in_any_memory_layout(name: str, training: bool, steps: int) -> None:
    """torch's batch norm mixes up the elements if only one of input and gradient is channels_last."""

    def laid_out(t: Tensor, last: bool) -> Tensor:
        return t.movedim(2, -1).contiguous().movedim(-1, 2) if last else t

    torch.manual_seed(0)
    norm = make_norm(name, 3, timesteps=steps, threshold=0.7).double().train(training)
    x, g = torch.randn(2, steps, 1, 3, 4, 5, dtype=torch.float64)
    grads = []
    for last_x, last_g in ((False, False), (True, False), (False, True), (True, True)):
        leaf = laid_out(x, last_x).detach().requires_grad_()
        norm.zero_grad()
        norm(leaf).backward(laid_out(g, last_g))
        grads.append([leaf.grad, *(p.grad for p in norm.parameters())])
    for other in grads[1:]:
        for got, want in zip(other, grads[0], strict=True):
            torch.testing.assert_close(got, want)


@pytest.mark.parametrize("gradients", [True, False])
def test_one_image_keeps_its_memory_format(gradients: bool) -> None:
    """Layers that follow are slower in another format."""
    x = torch.randn(1, 3, 4, 5).contiguous(memory_format=torch.channels_last).unsqueeze(0)
    with torch.set_grad_enabled(gradients):
        y = TDBN(3).eval()(x.requires_grad_(gradients))
    assert y[0].is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("name", ["bn", "bntt"])
def test_one_image_rounds_the_same_without_gradients(name: str) -> None:
    """A reentrant checkpoint first runs without gradients; its recomputation must give the same numbers."""
    x = torch.randn(4, 8, 9, 9, generator=torch.Generator().manual_seed(0))
    x = x.contiguous(memory_format=torch.channels_last).unflatten(0, (4, 1))
    norm = make_norm(name, 8, timesteps=4)
    other = copy.deepcopy(norm)
    with torch.no_grad():
        seen = other(x)
    assert torch.equal(seen, norm(x))
    assert all(torch.equal(a, b) for a, b in zip(norm.buffers(), other.buffers()))
