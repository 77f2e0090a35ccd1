"""The whole product of norms, neurons, gradients and initial potentials, losses in turn: it trains or says why not.

A tiny network (one convolution, norm, neuron, linear head) on a fixed batch. For every combination: finite loss, a
gradient for every parameter, a loss that falls over 20 steps, a state round trip; `check_model` for a share of them.
"""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from steadyspike.nn.compose import Method, compose, refusals
from steadyspike.nn.factory import Site, neuron_for, starting_threshold
from steadyspike.nn.groups import parameter_groups
from steadyspike.nn.lif import LIF
from steadyspike.nn.loss import EAGD, LOSSES, TimeMeanCE, channel_mapping, make_objective
from steadyspike.nn.model_check import check_model
from steadyspike.nn.neurons import NEURONS, neuron_factory
from steadyspike.nn.norm import NORMS, make_norm
from steadyspike.nn.time import Folded

T, B, C, K = 2, 6, 4, 3
SITE = Site(C, (4, 4), T)
NEURON_NAMES = ["lif", "if", "plif", "ltmd", "diet", "mps", "mpbn", "rate"]
GRADIENTS = ["trsg", "rs", "as"]
INITS = ["mp", "zero", "imp"]
OBJECTIVES: list[dict[str, Any]] = [
    {"loss": "ce"},
    {"loss": "tet"},
    {"loss": "tet-smooth"},
    {"loss": "lts"},
    {"loss": "twin"},
    {"loss": "ce", "terms": {"rmp": {"weight": 0.05}}},
    {"loss": "ce", "terms": {"sparsity": {"weight": 0.05}}},
    {"loss": "ce", "terms": {"guidance": {"weight": 0.1}}},
    {"loss": "tet", "terms": {"rmp": {"weight": 0.05}, "sparsity": {"form": "l2"}, "guidance": {"drop": 0.0}}},
]


class TinyNet(nn.Module):
    def __init__(self, method: Method) -> None:
        super().__init__()
        self.conv = Folded(nn.Conv2d(2, C, 3, padding=1))
        self.norm = make_norm(method.norm, C, timesteps=T, threshold=starting_threshold(method.neuron, SITE))
        self.neuron = neuron_for(method.neuron, SITE)
        self.dropout = nn.Dropout(0.1)
        self.head = Folded(nn.Sequential(nn.Flatten(), nn.Linear(C * 16, K)))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.dropout(self.neuron(self.norm(self.conv(x)))))


def batch() -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(0)
    return 2 * torch.randn(T, B, 2, 4, 4, generator=g), torch.randint(K, (B,), generator=g)


def train(model: nn.Module, method: Method, steps: int) -> list[float]:
    x, target = batch()
    optimizer = torch.optim.SGD(parameter_groups(model, 1e-4), lr=0.1, momentum=0.9)
    losses = []
    for step in range(steps):
        optimizer.zero_grad()
        loss = method.objective(model, x, target).loss
        loss.backward()
        if step == 0:
            for name, p in model.named_parameters():
                assert not p.requires_grad or (p.grad is not None and p.grad.isfinite().all()), name
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def evaluated(model: nn.Module, method: Method) -> float:
    """The task loss in evaluation mode of dropout, but with the batch's own statistics as in training."""
    model.train()
    model.dropout.eval()
    with torch.no_grad():
        loss = float(method.objective.task(model(batch()[0]), batch()[1]))
    model.train()
    return loss


def product() -> list[tuple[str, str, str, str]]:
    return list(itertools.product([*NORMS, "mpbn"], NEURON_NAMES, GRADIENTS, INITS))


def expected_refusal(norm: str, name: str, gradient: str, init: str, objective: dict[str, Any]) -> str | None:
    """The rules, written down a second time: which words must explain the refusal."""
    terms = objective.get("terms", {})
    if norm == "mpbn" and name not in ("lif", "mpbn"):
        return "membrane of a LIF"
    if name == "ltmd" and gradient != "as":
        return "may cross 0"
    if name == "rate":
        if init == "imp":
            return "no gradient to U"
        if norm in ("bntt", "tebn", "tab"):
            return "do not belong to its steps"
        if objective["loss"] in ("tet", "tet-smooth", "lts"):
            return "loss on single time steps"
        if "guidance" in terms or "rmp" in terms:
            return "rate-based backpropagation"
    if (name == "mpbn" or norm == "mpbn") and "rmp" in terms:
        return "normalised potential"
    if name == "ltmd" and "rmp" in terms:
        return "may cross 0"
    return None


def objective_for(index: int, norm: str, name: str, gradient: str, init: str) -> dict[str, Any]:
    """Objectives in turn; if one is refused for the neuron's sake, the next that fits."""
    for shift in range(len(OBJECTIVES)):
        objective = OBJECTIVES[(index + shift) % len(OBJECTIVES)]
        if expected_refusal("tdbn" if norm != "mpbn" else norm, name, "as", "zero", objective) is None:
            return objective
    return OBJECTIVES[0]


# i // 9 moves the turn on from one pair of norm and neuron to the next, so that every loss meets every one of them.
CASES = [(*combination, objective_for(i + i // 9, *combination)) for i, combination in enumerate(product())]


@pytest.mark.parametrize("norm", [*NORMS, "mpbn"])
@pytest.mark.parametrize("name", NEURON_NAMES)
def test_every_combination_trains_or_is_refused_with_a_reason(norm: str, name: str) -> None:
    trained = 0
    for case_norm, case_name, gradient, init, objective in CASES:
        if (case_norm, case_name) != (norm, name):
            continue
        where = (norm, name, gradient, init, objective)
        options = {**objective, "gradient": gradient, "init": init, "timesteps": T}
        reason = expected_refusal(norm, name, gradient, init, objective)
        if reason is not None:
            with pytest.raises(ValueError, match=reason):
                compose(norm, name, **options)
            continue
        torch.manual_seed(0)
        method = compose(norm, name, **options)
        model = TinyNet(method)
        first = evaluated(model, method)
        losses = train(model, method, 20)
        assert all(map(torch.isfinite, torch.tensor(losses))), where
        assert evaluated(model, method) < first, where
        twin = TinyNet(method)
        twin.load_state_dict(model.state_dict())
        model.eval(), twin.eval()
        assert torch.equal(model(batch()[0]), twin(batch()[0])), where
        trained += 1
    assert trained or expected_refusal(norm, name, "as", "zero", {"loss": "ce"}) is not None


def test_every_loss_meets_every_norm_and_every_neuron() -> None:
    met_norms, met_neurons = set(), set()
    for norm, name, gradient, init, objective in CASES:
        if expected_refusal(norm, name, gradient, init, objective) is None:
            index = OBJECTIVES.index(objective)
            met_norms.add((index, norm))
            met_neurons.add((index, name))
    for index, objective in enumerate(OBJECTIVES):
        for name in NEURON_NAMES:
            allowed = expected_refusal("tdbn", name, "as", "zero", objective) is None
            assert ((index, name) in met_neurons) == allowed, (objective, name)
        for norm in [*NORMS, "mpbn"]:
            allowed = any(expected_refusal(norm, n, "as", "zero", objective) is None for n in NEURON_NAMES)
            assert ((index, norm) in met_norms) == allowed, (objective, norm)


@pytest.mark.parametrize("norm", [*NORMS, "mpbn"])
@pytest.mark.parametrize("name", NEURON_NAMES)
def test_check_model_passes(norm: str, name: str) -> None:
    if expected_refusal(norm, name, "as", "mp", {"loss": "ce"}) is not None:
        pytest.skip("refused, see above")
    gradient = "as" if name == "ltmd" else GRADIENTS[(len(norm) + len(name)) % 3]
    torch.manual_seed(0)
    model = TinyNet(compose(norm, name, gradient=gradient, init="mp", timesteps=T))
    report = check_model(model, batch()[0])
    assert report.ok, report


@pytest.mark.parametrize("name", [n for n in NEURONS if n not in (*NEURON_NAMES, "readout")])
def test_the_other_named_neurons_train_too(name: str) -> None:
    torch.manual_seed(0)
    method = compose("tdbn", name, timesteps=T)
    model = TinyNet(method)
    first = evaluated(model, method)
    train(model, method, 20)
    assert evaluated(model, method) < first


def test_eagd_with_rate_neurons_trains() -> None:
    torch.manual_seed(0)
    teacher = [
        nn.Sequential(nn.Conv2d(2, C, 3, padding=1), nn.BatchNorm2d(C), nn.ReLU()),
        nn.Sequential(nn.Flatten(), nn.Linear(C * 16, K)),
    ]
    objective = make_objective("ce", {"eagd": EAGD(teacher, ["neuron"], [channel_mapping(C, C)])})
    method = compose("tdbn", "rate", objective, timesteps=T)
    model = TinyNet(method)
    first = evaluated(model, method)
    train(model, method, 20)
    assert evaluated(model, method) < first


def test_refusals_that_the_product_does_not_reach() -> None:
    with pytest.raises(ValueError, match="does not spike"):
        compose(neuron="readout")
    with pytest.raises(ValueError, match="at least 2"):
        compose(timesteps=1, terms={"guidance": {}})
    with pytest.raises(ValueError, match="never trains"):
        compose(neuron="mps", timesteps=1)
    with pytest.raises(ValueError, match="give timesteps"):
        compose("tebn")
    with pytest.raises(ValueError, match="one initial potential"):
        compose(neuron="imp", init="mp")
    with pytest.raises(TypeError, match="gradient"):
        compose(neuron=LIF, gradient="as")
    for wrong in (4.0, 0, True):
        with pytest.raises(ValueError, match="whole number above 0"):
            compose("tebn", timesteps=wrong)
    for norm, error, words in (
        ("foo", ValueError, "unknown norm 'foo'"),
        (None, TypeError, "a callable"),
        (3, TypeError, "a name"),
    ):
        with pytest.raises(error, match=words):
            compose(norm)
    with pytest.raises(TypeError, match="got None"):
        compose(neuron=None)


@pytest.mark.parametrize(
    ("name", "options"),
    [("diet", {}), ("lif", {"init": "zero", "decay_input": False}), ("plif", {"decay_input": False})],
)
def test_a_leak_that_one_step_never_uses_is_refused(name: str, options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="leak has no effect"):
        compose(neuron=name, timesteps=1, **options)
    compose(neuron=name, timesteps=2, **options)
    layer = compose(neuron=name, timesteps=1, **{**options, "init": 0.2}).neuron.at(SITE)
    layer(batch()[0][:1]).sum().backward()
    assert all(p.grad is not None and p.grad.any() for p in layer.parameters() if p.requires_grad)


@pytest.mark.parametrize("name", [n for n in NEURON_NAMES if n != "rate"])
def test_one_step_trains_every_parameter_or_is_refused(name: str) -> None:
    try:
        layer = compose(neuron=name, timesteps=1).neuron.at(SITE)
    except ValueError:
        assert name in ("diet", "mps")
        return
    x = torch.randn(1, 64, C, 4, 4, generator=torch.Generator().manual_seed(0))
    (layer(2 * x + 0.5) * x.sin()).sum().backward()
    for parameter, p in layer.named_parameters():
        assert not p.requires_grad or p.grad.any(), parameter


def test_an_objective_brings_everything_of_its_own() -> None:
    objective = make_objective("tet")
    for given in ({"terms": {"sparsity": {}}}, {"loss_options": {"lamb": 0.9}}, {"batch_dim": 0}):
        with pytest.raises(TypeError, match=f"its own {next(iter(given))}"):
            compose(loss=objective, **given)
    assert compose(loss=objective).objective is objective
    assert compose(loss=TimeMeanCE(), terms={"sparsity": {}}, batch_dim=0).objective.batch_dim == 0


def test_mpbn_as_a_norm_takes_the_lif_in_any_form() -> None:
    assert compose("mpbn", LIF).neuron == neuron_factory("mpbn")
    given, expected = (neuron_factory(name, tau=3.0, channelwise=True) for name in ("lif", "mpbn"))
    assert compose("mpbn", given).neuron == expected
    with pytest.raises(ValueError, match="no form for 'lif-tet'"):
        compose("mpbn", neuron_factory("lif-tet"))


def test_a_channelwise_neuron_by_name() -> None:
    assert compose(neuron="lif", channelwise=True).neuron == neuron_factory("lif", channelwise=True)


def test_the_starting_threshold_is_that_of_the_layer() -> None:
    assert starting_threshold(neuron_factory("lif-tdbn"), SITE) == pytest.approx(0.5)
    random = neuron_factory("imp", channelwise=True, threshold=0.7)
    before = torch.get_rng_state()
    assert starting_threshold(random, SITE) == pytest.approx(0.7)
    with torch.device("meta"):
        assert starting_threshold(LIF, SITE) == pytest.approx(1.0)
    assert torch.equal(torch.get_rng_state(), before)
    for wrong, words in (
        (neuron_factory("ltmd", threshold=-0.2), "thresholds"),
        (lambda: LIF(threshold=[0.5, 1.0], channels=2), r"thresholds \[0.5"),
        (nn.ReLU, "has no attribute threshold"),
    ):
        with pytest.raises(ValueError, match=words):
            starting_threshold(wrong, SITE)


def test_parts_may_be_objects() -> None:
    method = compose(lambda c: nn.Identity(), neuron_factory("plif"), make_objective("tet"))
    assert not refusals(method.norm, method.neuron, method.objective)
    assert compose(neuron=LIF).neuron is LIF
    assert compose("mpbn", "lif", gradient="trsg").norm == "tdbn"


def test_every_task_loss_is_in_the_walk() -> None:
    assert {objective["loss"] for objective in OBJECTIVES} == set(LOSSES)
