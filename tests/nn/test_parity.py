"""The same methods in SpikingJelly 2.0.0 and snnTorch 1.0.0: outputs and every gradient agree; differences are pinned.

docs/methods.md lists the differences that the tests at the end hold fast.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from steadyspike.core.spec import Reset
from steadyspike.core.surrogate import ArcTan, Sigmoid
from steadyspike.nn.lif import LIF
from steadyspike.nn.loss import tet_loss
from steadyspike.nn.neurons import IF, MPBN, PLIF
from steadyspike.nn.norm import BNTT, TDBN, TEBN

pytestmark = pytest.mark.peer
T, B, C = 5, 4, 3


@pytest.fixture(scope="module")
def sj():
    pytest.importorskip("spikingjelly", reason="SpikingJelly is not installed")
    from spikingjelly import activation_based
    from spikingjelly.activation_based import functional, layer, neuron, surrogate  # noqa: F401

    return activation_based


@pytest.fixture(scope="module")
def snn():
    return pytest.importorskip("snntorch", reason="snnTorch is not installed")


def current(seed: int = 0, steps: int = T) -> Tensor:
    g = torch.Generator().manual_seed(seed)
    return 1.5 * torch.randn(steps, B, C, 4, 4, generator=g, dtype=torch.float64) + 0.5


def agree(ours, theirs, pairs: list[tuple[Tensor, Tensor]], steps: int = T, tolerance: float = 1e-9) -> None:
    """Same output, same gradient to the input and to each pair of parameters, on random input and cotangent."""
    weights = torch.randn(current(steps=steps).shape, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
    results = []
    for run in (ours, theirs):
        x = current(steps=steps).requires_grad_()
        y = run(x)
        (y * weights).sum().backward()
        results.append((y.detach(), x.grad))
    for a, b in zip(*results):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)
    for ours_p, theirs_p in pairs:
        torch.testing.assert_close(ours_p.grad, theirs_p.grad.view_as(ours_p), rtol=1e-9, atol=1e-9)


def with_values(*modules: nn.Module) -> None:
    """The same parameter values, away from their start, in modules whose parameters come in the same order."""
    for module in modules:
        g = torch.Generator().manual_seed(2)
        with torch.no_grad():
            for p in module.parameters():
                p.copy_(torch.rand(p.shape, generator=g, dtype=torch.float64) + 0.5)


def exact(layer: LIF | IF, tau: float | None = None) -> LIF | IF:
    """The layer in float64 with V = 1 (and tau) to float64 precision; built, they are those of float32."""
    layer.double()
    layer.set_constant("threshold", [1.0])
    if tau is not None:
        layer.set_constant("leak", [1 / tau])
    return layer


def test_tdbn(sj) -> None:
    ours = TDBN(C, "gamma", threshold=0.6, alpha=0.5).double()
    theirs = sj.layer.ThresholdDependentBatchNorm2d(0.5, 0.6, C).double()
    torch.testing.assert_close(ours.weight, theirs.weight)
    agree(ours, theirs, [(ours.weight, theirs.weight), (ours.bias, theirs.bias)])
    torch.testing.assert_close(ours.running_mean, theirs.running_mean)
    torch.testing.assert_close(ours.running_var, theirs.running_var)


def test_tebn(sj) -> None:
    ours, theirs = TEBN(C, T).double(), sj.layer.TemporalEffectiveBatchNorm2d(T, C).double()
    with torch.no_grad():
        for p in (ours.p, theirs.scale):
            p.copy_(torch.linspace(-0.5, 1.5, T))
    agree(ours, theirs, [(ours.weight, theirs.weight), (ours.bias, theirs.bias), (ours.p, theirs.scale)])
    torch.testing.assert_close(ours.running_var, theirs.running_var)


def test_bntt(sj) -> None:
    ours = BNTT(C, T).double()
    theirs = sj.layer.BatchNormThroughTime2d(T, C, eps=1e-4, step_mode="m").double()
    with torch.no_grad():
        for t, bn in enumerate(theirs.bn_list):
            bn.weight.fill_(t + 0.5)
            ours.weight[t].fill_(t + 0.5)
    agree(ours, theirs, [])
    torch.testing.assert_close(ours.weight.grad, torch.stack([bn.weight.grad for bn in theirs.bn_list]))
    torch.testing.assert_close(ours.running_mean, torch.stack([bn.running_mean for bn in theirs.bn_list]))


@pytest.mark.parametrize("detach", [True, False])
@pytest.mark.parametrize("reset", ["hard", "soft"])
def test_plif(sj, reset: str, detach: bool) -> None:
    ours = exact(PLIF(tau=3.0, reset=Reset(reset, detach="product" if detach else "none")))
    theirs = sj.neuron.ParametricLIFNode(
        init_tau=3.0,
        v_reset=0.0 if reset == "hard" else None,
        detach_reset=detach,
        surrogate_function=sj.surrogate.ATan(2.0),
        step_mode="m",
    ).double()
    agree(ours, theirs, [(ours.w, theirs.w)])


def test_lif_and_if(sj) -> None:
    surrogate = sj.surrogate.Sigmoid(4.0)
    lif = exact(LIF(gradient="as", surrogate=Sigmoid(0.25), reset="hard", init="zero", learn=()))
    agree(lif, sj.neuron.LIFNode(tau=2.0, surrogate_function=surrogate, step_mode="m"), [])
    integrate = exact(IF(gradient="as", surrogate=Sigmoid(0.25), reset="hard", init="zero", learn=False))
    agree(integrate, sj.neuron.IFNode(surrogate_function=surrogate, step_mode="m"), [])


def mpbn_pair(sj) -> tuple[MPBN, nn.Module]:
    ours = exact(MPBN(C, 1.0, tau=2.0, gradient="as", surrogate=ArcTan(2.0), strict=False), tau=2.0)
    theirs = sj.neuron.MPBNLIFNode(
        tau=2.0, out_channels=C, surrogate_function=sj.surrogate.ATan(2.0), step_mode="m"
    ).double()
    with_values(ours.norm, theirs.vbn)
    return ours, theirs


def test_mpbn_one_step(sj) -> None:
    ours, theirs = mpbn_pair(sj)
    agree(ours, theirs, [(ours.norm.weight, theirs.vbn.weight), (ours.norm.bias, theirs.vbn.bias)], steps=1)
    torch.testing.assert_close(ours.norm.running_mean, theirs.vbn.running_mean)
    torch.testing.assert_close(ours.norm.running_var, theirs.vbn.running_var)


def test_tet(sj) -> None:
    target = torch.tensor([0, 2, 1, 1])
    grads = []
    for loss in (lambda y: tet_loss(y, target, lamb=0.0), None):
        y = current()[:, :, :, 0, 0].clone().requires_grad_()
        value = loss(y) if loss else sj.functional.temporal_efficient_training_cross_entropy(y, target)
        value.backward()
        grads.append((value.detach(), y.grad))
    for a, b in zip(*grads):
        torch.testing.assert_close(a, b)


def leaky(snn, x: Tensor, layer: nn.Module) -> Tensor:
    mem, out = torch.zeros_like(x[0]), []
    for x_t in x:
        spikes, mem = layer(x_t, mem)
        out.append(spikes)
    return torch.stack(out).double()  # its spikes are float32 whatever the input


@pytest.mark.parametrize(("mechanism", "reset"), [("zero", "hard"), ("none", "none")])
def test_snntorch_leaky(snn, mechanism: str, reset: str) -> None:
    """snnTorch: mem = beta mem + x, mem > threshold, detached reset, absolute arctan gradient."""
    ours = LIF(
        threshold=0.8,
        tau=4.0,  # beta = 1 - 1/tau = 0.75
        gradient="as",
        surrogate=ArcTan(2.0),
        reset=Reset(reset, detach=True),
        init="zero",
        strict=True,
        decay_input=False,
    ).double()
    theirs = snn.Leaky(
        beta=0.75, threshold=0.8, learn_beta=True, learn_threshold=True, reset_mechanism=mechanism
    ).double()
    with torch.no_grad():  # both hold float32 constants; take ours
        theirs.threshold.copy_(ours.threshold[0])
        theirs.beta.copy_(1 - ours.leak[0])
    agree(ours, lambda x: leaky(snn, x, theirs), [], tolerance=1e-6)
    v, a = ours.threshold.detach(), ours.leak.detach()
    torch.testing.assert_close(ours.k.grad[0], theirs.threshold.grad * (1 - torch.exp(-v[0])))
    torch.testing.assert_close(ours.w.grad[0], -theirs.beta.grad * (a * (1 - a))[0])


def test_snntorch_leaky_without_leak_resets_by_subtraction_as_we_do(snn) -> None:
    ours = IF(
        gradient="as", surrogate=ArcTan(2.0), reset=Reset("soft", "product"), init="zero", learn=False, strict=True
    )
    theirs = snn.Leaky(beta=1.0, reset_mechanism="subtract").double()
    agree(ours.double(), lambda x: leaky(snn, x, theirs), [], tolerance=1e-6)


# --- differences ------------------------------------------------------------------------------------------------------


def test_difference_snntorch_subtracts_the_threshold_after_the_decay(snn) -> None:
    """snnTorch takes V off one step late, undecayed: M[t+1] = beta M[t] + x - V S, ours is beta (M[t] - V S) + x."""
    x = torch.tensor([1.5, 0.0], dtype=torch.float64).view(2, 1, 1)
    theirs = snn.Leaky(beta=0.5, reset_mechanism="subtract").double()
    mem = torch.zeros(1, 1, dtype=torch.float64)
    for x_t in x:
        _, mem = theirs(x_t, mem)
    assert float(mem) == pytest.approx(0.5 * 1.5 - 1.0)
    ours = LIF(tau=2.0, gradient="as", reset="soft", init="zero", learn=(), decay_input=False).double()
    assert float(ours.run(x, torch.zeros(1)).u) == pytest.approx(0.5 * (1.5 - 1.0))


def test_difference_spikingjelly_mpbn_carries_the_normalised_potential(sj) -> None:
    """SpikingJelly resets and keeps BN(u); the authors' code, and ours, resets and keeps u."""
    ours, theirs = mpbn_pair(sj)
    x = current(steps=1)
    u = x[0]  # charged from 0 with an unscaled input
    z = ours.norm(u[None])[0].detach()
    theirs(x)
    torch.testing.assert_close(theirs.v.detach(), z * (z < 1))
    torch.testing.assert_close(ours.run(x, torch.zeros(1)).u.detach(), u * (z < ours.threshold))


def test_difference_spikingjelly_tdbn_starts_gamma_instead_of_scaling(sj) -> None:
    """alpha * V_th is the start of gamma there and a fixed factor in the paper: gamma's gradient differs by it."""
    scaled = TDBN(C, "factor", threshold=0.6, alpha=0.5).double()
    theirs = sj.layer.ThresholdDependentBatchNorm2d(0.5, 0.6, C).double()
    for run in (scaled, theirs):
        run(current()).square().sum().backward()
    torch.testing.assert_close(scaled.weight.grad, 0.3 * theirs.weight.grad, rtol=1e-6, atol=1e-6)


def test_difference_spikingjelly_tet_has_no_mse_term(sj) -> None:
    y, target = current()[:, :, :, 0, 0], torch.tensor([0, 2, 1, 1])
    theirs = sj.functional.temporal_efficient_training_cross_entropy(y, target)
    full = tet_loss(y, target, lamb=0.05)
    torch.testing.assert_close(full, 0.95 * theirs + 0.05 * (y - 1).square().mean())
