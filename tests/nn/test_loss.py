"""Losses against their formulae, written out; what each sends a gradient to; the objective that runs them."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from steadyspike.nn.initial_potential import MPInit
from steadyspike.nn.lif import LIF
from steadyspike.nn.loss import (
    EAGD,
    LOSSES,
    TERMS,
    Guidance,
    Objective,
    TimeMeanCE,
    Twin,
    channel_mapping,
    guidance_loss,
    hybrid_logits,
    last_step_cross_entropy,
    make_objective,
    ramp,
    rmp_loss,
    smooth_tet_loss,
    sparsity_loss,
    spike_rates,
    tet_loss,
    time_mean_cross_entropy,
    twin_loss,
)
from steadyspike.nn.neurons import Readout
from steadyspike.nn.probe import probe
from steadyspike.nn.time import Folded

T, B, K = 4, 5, 3


def logits(seed: int = 0) -> Tensor:
    return torch.randn(T, B, K, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


TARGET = torch.tensor([0, 2, 1, 1, 0])


def nll(y: Tensor) -> Tensor:
    """Cross-entropy of [B, K] from its definition."""
    return -(y.exp() / y.exp().sum(1, keepdim=True)).log()[torch.arange(B), TARGET].mean()


def net(gradient: str = "trsg", dropout: float = 0.0) -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential(
        Folded(nn.Linear(6, 8)),
        LIF(threshold=0.5, gradient=gradient),
        nn.Dropout(dropout),
        Folded(nn.Linear(8, 7)),
        LIF(threshold=0.5, gradient=gradient),
        Folded(nn.Linear(7, K)),
    )
    return lively(model).double()


def lively(model: nn.Module) -> nn.Module:
    """Weights large enough for every layer to fire."""
    with torch.no_grad():
        for name, p in model.named_parameters():
            if name.endswith("weight"):
                p.mul_(4)
    return model


def example() -> Tensor:
    return 2 * torch.randn(T, B, 6, generator=torch.Generator().manual_seed(7), dtype=torch.float64)


def test_task_losses_are_their_formulae() -> None:
    y = logits()
    torch.testing.assert_close(time_mean_cross_entropy(y, TARGET), nll(y.mean(0)))
    torch.testing.assert_close(last_step_cross_entropy(y, TARGET), nll(y[-1]))
    per_step = torch.stack([nll(y[t]) for t in range(T)]).mean()
    tet = 0.95 * per_step + 0.05 * ((y - 1.0) ** 2).mean()
    torch.testing.assert_close(tet_loss(y, TARGET, lamb=0.05), tet)
    torch.testing.assert_close(tet_loss(y, TARGET, lamb=0.0), per_step)
    soft = torch.full((B, K), 0.1 / K, dtype=torch.float64)
    soft[torch.arange(B), TARGET] += 0.9
    smoothed = -(soft * y.log_softmax(-1)).sum(-1).mean()
    torch.testing.assert_close(smooth_tet_loss(y, TARGET, 0.1), smoothed)


def test_task_losses_take_soft_targets() -> None:
    soft = F.one_hot(TARGET, K).double()
    for loss in (time_mean_cross_entropy, last_step_cross_entropy, tet_loss, smooth_tet_loss):
        torch.testing.assert_close(loss(logits(), soft), loss(logits(), TARGET))


def test_predictions_are_those_the_loss_trains() -> None:
    for name, cls in LOSSES.items():
        expected = logits()[-1] if name == "lts" else logits().mean(0)
        torch.testing.assert_close(cls().predict(logits()), expected)


@pytest.mark.parametrize("name", LOSSES)
def test_half_precision_logits_give_a_float32_loss(name: str) -> None:
    y = logits().bfloat16()
    loss = LOSSES[name]()(y, TARGET)
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, LOSSES[name]()(y.float(), TARGET))


@pytest.mark.parametrize("name", LOSSES)
def test_logits_without_time_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"\[T, B, K\]"):
        LOSSES[name]()(logits()[0], TARGET if name != "twin" else TARGET[:K])


def test_twin_loss_is_its_formula() -> None:
    a, b = logits(1), logits(2)
    p, q = a.mean(0).softmax(1), b.mean(0).softmax(1)
    kl = (p * (p / q).log()).mean() + (q * (q / p).log()).mean()
    expected = 0.5 * (nll(a.mean(0)) + nll(b.mean(0))) + 0.5 * kl / 2
    torch.testing.assert_close(twin_loss(a, b, TARGET), expected)
    torch.testing.assert_close(Twin()(torch.cat([a, b], 1), TARGET), expected)
    torch.testing.assert_close(twin_loss(a, a, TARGET), nll(a.mean(0)))
    with pytest.raises(ValueError, match="once or twice"):
        Twin()(torch.cat([a, b, a], 1), TARGET)


def test_guidance_teaches_each_step_by_its_neighbour() -> None:
    y = logits().requires_grad_()
    loss = guidance_loss(y, temperature=2.0, drop=0.0)
    soft = (y.detach() / 2).softmax(-1)
    expected = sum((soft[t - 1] * (soft[t - 1] / soft[t]).log()).sum(-1).mean() for t in range(1, T))
    torch.testing.assert_close(loss.detach(), expected)
    loss.backward()
    assert not y.grad[0].any() and y.grad[1:].flatten(1).any(1).all()
    z = logits().requires_grad_()
    guidance_loss(z, drop=0.0, teacher="next").backward()
    assert not z.grad[-1].any() and z.grad[:-1].flatten(1).any(1).all()
    with pytest.raises(ValueError, match="T >= 2"):
        guidance_loss(logits()[:1])


def test_guidance_drops_steps_at_random() -> None:
    values = {
        round(float(guidance_loss(logits(), drop=0.5, generator=torch.Generator().manual_seed(s))), 6)
        for s in range(30)
    }
    assert 3 < len(values) <= 8  # 2^3 subsets of three pairs
    assert 0.0 in values


def records(model: nn.Module) -> dict:
    with probe(model, record=("m", "spikes"), graph=True) as seen:
        model(example())
    return seen


@pytest.mark.parametrize("form", ["distance", "product"])
@pytest.mark.parametrize("power", [1, 2])
def test_rmp_loss_is_its_formula(form: str, power: int) -> None:
    seen = records(net())
    expected = []
    for record in seen.values():
        r = record.m.detach() / record.layer.threshold.detach()
        distance = (r - record.spikes.detach()).abs() ** power
        expected.append((r**2 * (1 - r) ** 2).mean() if form == "product" else distance.mean())
    torch.testing.assert_close(rmp_loss(seen.calls(), form, power).detach(), torch.stack(expected).mean())


def test_rmp_loss_trains_weights_and_leaves_the_threshold_to_the_dynamics() -> None:
    """With V detached, the only path to k of the last layer is through its own reset."""
    model = net()
    rmp_loss(records(model).calls()).backward()
    assert float(model[0].layer.weight.grad.abs().sum()) > 0
    moving = model[4].k.grad.clone()
    model.zero_grad()
    rmp_loss(records(model).calls(), detach_threshold=False).backward()
    assert not torch.allclose(model[4].k.grad, moving)


def test_ramp_leaves_early_training_free() -> None:
    assert [ramp(e, 0.1, start=2, length=4) for e in (0, 1, 2, 4, 6, 60)] == pytest.approx([0, 0, 0, 0.05, 0.1, 0.1])
    assert ramp(0, 0.1) == 0.1


@pytest.mark.parametrize("gradient", ["trsg", "rs", "as"])
def test_sparsity_is_on_spikes_and_not_on_v_times_spikes(gradient: str) -> None:
    model = net(gradient)
    seen = records(model)
    rates = [float(r.spikes.detach().mean()) for r in seen.values()]
    assert all(0 < r < 1 for r in rates)
    mean = sum(rates) / 2
    assert float(sparsity_loss(seen.calls(), "l1").detach()) == pytest.approx(mean)
    assert float(sparsity_loss(seen.calls(), "l2").detach()) == pytest.approx(mean / 2)
    expected = sum((r - 0.1) ** 2 for r in rates) / 2
    assert float(sparsity_loss(seen.calls(), "target", 0.1).detach()) == pytest.approx(expected)
    expected = sum(max(0.0, r - rates[0]) for r in rates) / 2
    assert float(sparsity_loss(seen.calls(), "hinge", rates[0]).detach()) == pytest.approx(expected)


def test_descent_on_sparsity_raises_the_threshold() -> None:
    """A penalty on V*S would be cut by shrinking V instead, which is why it is on S."""
    layer = LIF(init="zero").double()
    x = 2 + example()
    with probe(layer, record="spikes", graph=True) as seen:
        out = layer(x)
    (on_spikes,) = torch.autograd.grad(sparsity_loss(seen.calls()), layer.k, retain_graph=True)
    (on_output,) = torch.autograd.grad(out.mean(), layer.k)
    assert float(on_spikes) < 0 < float(on_output)


def test_l2_reaches_only_neurons_that_fired() -> None:
    layer = LIF(init="zero", learn=()).double()
    x = torch.tensor([[[1.8, 2.2]]], dtype=torch.float64).requires_grad_()  # M = 0.9 and 1.1: both within the window
    for form, expected in {"l1": [True, True], "l2": [False, True]}.items():
        with probe(layer, record="spikes", graph=True) as seen:
            layer(x)
        (grad,) = torch.autograd.grad(sparsity_loss(seen.calls(), form), x)
        assert (grad.flatten() != 0).tolist() == expected


def test_spike_rates_report_layers_and_the_whole() -> None:
    seen = records(net())
    rates = spike_rates(seen)
    spikes = [r.spikes.detach() for r in seen.values()]
    assert list(rates.layers.values()) == pytest.approx([float(s.mean()) for s in spikes])
    assert rates.overall == pytest.approx(float(torch.cat([s.flatten() for s in spikes]).mean()))


def test_readouts_are_no_part_of_spike_terms() -> None:
    model = nn.Sequential(net(), Readout())
    seen = records(model)
    assert len(seen) == 3
    assert rmp_loss(seen.calls()).isfinite() and sparsity_loss(seen.calls()).isfinite()
    for loss in (rmp_loss, sparsity_loss):
        with pytest.raises(ValueError, match="at least one spiking layer"):
            loss([seen["1"]])


def test_objective_adds_task_and_terms_and_leaves_no_taps() -> None:
    model = net()
    objective = make_objective("tet", {"rmp": {"weight": 0.3}, "sparsity": {"weight": 0.2}}, lamb=0.05)
    outcome = objective(model, example(), TARGET)
    assert set(outcome.parts) == {"task", "rmp", "sparsity"}
    torch.testing.assert_close(outcome.loss.detach(), sum(outcome.parts.values()))
    seen = records(net())
    torch.testing.assert_close(outcome.parts["rmp"], 0.3 * rmp_loss(seen.calls()).detach())
    torch.testing.assert_close(outcome.parts["sparsity"], 0.2 * sparsity_loss(seen.calls()).detach())
    torch.testing.assert_close(outcome.parts["task"], tet_loss(outcome.logits, TARGET, 0.05).detach())
    assert not any(getattr(m, "taps", None) for m in model.modules())


def test_objective_without_terms_is_the_bare_loss() -> None:
    torch.testing.assert_close(
        make_objective()(net(), example(), TARGET).loss, time_mean_cross_entropy(net()(example()), TARGET)
    )


def test_rmp_weight_follows_the_epoch() -> None:
    objective = make_objective("ce", {"rmp": {"weight": 0.1, "start": 1, "ramp_epochs": 2}})
    values = []
    for epoch in range(4):
        objective.set_epoch(epoch)
        values.append(float(objective(net(), example(), TARGET).parts["rmp"]))
    full = values[-1]
    assert values == pytest.approx([0.0, 0.0, full / 2, full]) and full > 0


@pytest.mark.parametrize("batch_dim", [0, 1])
def test_twin_objective_feeds_one_doubled_batch(batch_dim: int) -> None:
    model = net(dropout=0.5)
    x = example() if batch_dim else example()[0]
    run = model if batch_dim else nn.Sequential(RepeatInTime(), model)
    moved = []

    class Counted(MPInit):
        def update(self, active: Tensor) -> None:
            moved.append(active)

    model[1].init = Counted()
    outcome = make_objective("twin", batch_dim=batch_dim)(run.train(), x, TARGET)
    assert outcome.logits.shape == (T, B, K)
    assert len(moved) == 1  # MP-Init's mean moves once
    plain = time_mean_cross_entropy(outcome.logits, TARGET)
    assert not torch.allclose(outcome.loss, plain)
    quiet = make_objective("twin", batch_dim=batch_dim)(run.eval(), x, TARGET)
    torch.testing.assert_close(quiet.loss, time_mean_cross_entropy(quiet.logits, TARGET))


class RepeatInTime(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.expand(T, *x.shape)


def test_names_are_known_and_errors_say_so() -> None:
    with pytest.raises(ValueError, match="unknown loss 'mse'; known: ce, tet"):
        make_objective("mse")
    with pytest.raises(ValueError, match="unknown loss term 'x'; known: rmp, sparsity, guidance"):
        make_objective("ce", {"x": {}})
    with pytest.raises(TypeError, match="lamb"):
        make_objective(TimeMeanCE(), lamb=1)
    assert isinstance(make_objective("ce", {"mine": Guidance(drop=0.0)}), Objective)
    with pytest.raises(ValueError, match="a term cannot be called 'task', the name of the task loss"):
        make_objective("ce", {"task": Guidance()})
    with pytest.raises(ValueError, match="batch_dim is the batch axis"):
        make_objective("ce", batch_dim=2)


@pytest.mark.parametrize(
    ("term", "options"),
    [
        ("rmp", {"form": "zap"}),
        ("rmp", {"power": 3}),
        ("sparsity", {"form": "zap"}),
        ("guidance", {"drop": 3.0}),
        ("guidance", {"teacher": "last"}),
        ("guidance", {"temperature": 0.0}),
    ],
)
def test_terms_refuse_wrong_options_when_they_are_made(term: str, options: dict) -> None:
    with pytest.raises(ValueError, match=str(next(iter(options.values())))):
        make_objective("ce", {term: options})
    assert set(TERMS) == {"rmp", "sparsity", "guidance"}


# --- EAGD -------------------------------------------------------------------------------------------------------------


def teacher() -> list[nn.Module]:
    torch.manual_seed(3)
    return [
        nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU()),
        nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU()),
        nn.Sequential(nn.Flatten(), nn.Linear(4 * 9, K)),
    ]


class Student(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.first = nn.Sequential(Folded(nn.Conv2d(2, 4, 3, padding=1)), LIF(threshold=0.3))
        self.second = nn.Sequential(Folded(nn.Conv2d(4, 4, 3, padding=1)), LIF(threshold=0.3))
        self.head = Folded(nn.Sequential(nn.Flatten(), nn.Linear(4 * 9, K)))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.second(self.first(x)))


def test_hybrids_replace_block_after_block() -> None:
    """Features that equal the teacher's own make every hybrid the teacher."""
    blocks = [b.eval() for b in teacher()]
    x = torch.randn(B, 2, 3, 3)
    h1 = blocks[0](x)
    h2 = blocks[1](h1)
    answer = blocks[2](h2)
    features = [h.detach().expand(T, *h.shape) for h in (h1, h2)]
    mappings = [channel_mapping(4, 4), channel_mapping(4, 4)]
    for hybrid in hybrid_logits(features, blocks, mappings):
        torch.testing.assert_close(hybrid, answer)
    with pytest.raises(ValueError, match="need 2 features"):
        hybrid_logits(features[:1], blocks, mappings)


def test_eagd_trains_student_and_mappings_and_leaves_the_teacher_alone() -> None:
    term = EAGD(teacher(), ["first", "second"], [channel_mapping(4, 4), channel_mapping(4, 4)], temperature=2.0)
    student, objective = lively(Student()), make_objective("ce", {"eagd": term})
    before = {k: v.clone() for k, v in term.teacher.state_dict().items()}
    x = torch.randn(1, B, 2, 3, 3).expand(T, -1, -1, -1, -1)
    objective.train()
    outcome = objective(student, x, TARGET)
    outcome.loss.backward()
    assert all(p.grad is not None and p.grad.any() for p in student.parameters())
    assert all(p.grad is not None and p.grad.any() for p in term.mappings.parameters())
    assert all(torch.equal(v, before[k]) for k, v in term.teacher.state_dict().items())
    assert all(p.grad is None for p in term.teacher.parameters())
    assert not term.teacher.training
    assert not any(m._forward_hooks for m in student.modules())
    assert {n for n, p in objective.named_parameters() if p.requires_grad} == {
        f"terms.eagd.mappings.{i}.{n}" for i in (0, 1) for n in ("weight", "bias")
    }


def test_eagd_value_is_the_mean_of_divergences() -> None:
    blocks = teacher()
    term = EAGD(blocks, ["first", "second"], [channel_mapping(4, 4), channel_mapping(4, 4)], hybrid_weight=0.5)
    student = lively(Student()).eval()
    x = torch.randn(1, B, 2, 3, 3).expand(T, -1, -1, -1, -1)
    outcome = make_objective("ce", {"eagd": term})(student, x, TARGET)
    first = student.first(x)
    second = student.second(first)
    answer = blocks[2](blocks[1](blocks[0](x[0])))

    def kl(q: Tensor) -> Tensor:
        p = answer.softmax(1)
        return (p * (p.log() - q.log_softmax(1))).sum(1).mean()

    hybrids = [blocks[2](blocks[1](first.mean(0))), blocks[2](second.mean(0))]
    expected = kl(student.head(second).mean(0)) + 0.5 * (kl(hybrids[0]) + kl(hybrids[1])) / 2
    torch.testing.assert_close(outcome.parts["eagd"], expected.detach(), rtol=1e-5, atol=1e-6)


def test_eagd_shows_the_teacher_the_images_of_a_static_batch() -> None:
    class Static(Student):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x.expand(T, *x.shape))

    student = lively(Static()).eval()
    x = torch.randn(B, 2, 3, 3)

    def objective(batch_dim: int) -> Objective:
        term = EAGD(teacher(), ["first", "second"], [channel_mapping(4, 4), channel_mapping(4, 4)])
        return make_objective("ce", {"eagd": term}, batch_dim=batch_dim)

    with pytest.raises(ValueError, match="does not have 5 samples on axis 1"):
        objective(1)(student, x, TARGET)
    # Two copies of one channel are not a batch of 2 B.
    with pytest.raises(ValueError, match="does not have 5 samples on axis 1"):
        make_objective("twin")(student.train(), x[:, :1], TARGET)
    student.eval()
    images = objective(0)(student, x, TARGET).parts["eagd"]
    other = Student()
    other.load_state_dict(student.state_dict())
    as_frames = objective(1)(other.eval(), x.expand(T, *x.shape), TARGET).parts["eagd"]
    torch.testing.assert_close(images, as_frames)


def test_eagd_refuses_a_wrong_number_of_blocks() -> None:
    with pytest.raises(ValueError, match="teacher of 3 blocks needs 2"):
        EAGD(teacher(), ["first"], [channel_mapping(4, 4)])
    with pytest.raises(ValueError, match="no module 'third'"):
        make_objective("ce", {"eagd": EAGD(teacher()[1:], ["third"], [nn.Identity()])})(
            Student(), torch.randn(T, B, 2, 3, 3), TARGET
        )


def test_channel_mapping_starts_as_the_identity() -> None:
    x = torch.randn(2, 4, 3, 3)
    assert torch.equal(channel_mapping(4, 4)(x), x)
    assert torch.equal(channel_mapping(4, 6)(x)[:, :4], x)
    assert math.prod(channel_mapping(4, 6).weight.shape) == 24
