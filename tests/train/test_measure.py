"""What the tables show equals what can be computed otherwise."""

import math

import pytest
import torch

from steadyspike.deploy.early_exit import exit_curve
from steadyspike.nn.decision import decided
from steadyspike.nn.model_check import firing_rates
from steadyspike.report.details import _confusion
from steadyspike.train.build.build_network import build_model, recompute_blocks
from steadyspike.train.build.dry_run import dry_run
from steadyspike.train.build.optimizer import lr_factor
from steadyspike.train.build.task import build_objective
from steadyspike.train.recipe import RecipeError, load_recipe
from steadyspike.train.state.weight_average import WeightAverage
from steadyspike.train.watch.layers import GradientWatch, LayerWatch, layer_rows
from steadyspike.train.watch.scores import ScoreSums


def network(*settings, seed=0):
    torch.manual_seed(seed)
    recipe = load_recipe("tiny", ["neuron.threshold=0.3", *settings])
    return recipe, build_model(recipe, num_classes=10, in_channels=1, image_size=(16, 16))


def test_accuracy_after_each_number_of_steps():
    logits = torch.tensor([[[5.0, 0], [0, 1]], [[0, 9.0], [0, 1]], [[9.0, 0], [0, 1]]])  # [T=3, B=2, K=2]
    sums = ScoreSums(3)
    sums.add(torch.tensor(2.0), logits, torch.tensor([0, 0]), lambda y: y.mean(0))
    sums.add(torch.tensor(1.0), logits[:, :1], torch.tensor([0]), lambda y: y.mean(0))
    scores = sums.scores()
    assert scores.samples == 3 and scores.loss == pytest.approx(5 / 3)
    assert scores.accuracy == pytest.approx([200 / 3, 0, 200 / 3])


def test_scores_that_are_nan_are_wrong():
    """argmax alone takes them for class 0."""
    logits = torch.tensor([[[math.nan, math.nan], [2.0, 1.0]], [[3.0, 1.0], [2.0, math.inf]]])  # [T=2, B=2, K=2]
    sums = ScoreSums(2)
    sums.add(torch.tensor(1.0), logits, torch.tensor([0, 0]), lambda y: y[-1])
    assert sums.scores().accuracy == [50.0, 50.0]
    actual = _confusion(decided(logits[0]), torch.tensor([0, 0]), 2)
    assert (actual["accuracy"], actual["recall"], actual["confusion"]) == (50.0, [0.5, None], [[1, 0], [0, 0]])
    assert [point.accuracy for point in exit_curve([(logits, torch.tensor([0, 0]))], [None])] == [0.0]


def test_a_dry_run_takes_a_name():
    assert dry_run("tiny") == dry_run(load_recipe("tiny"))
    with pytest.raises(RecipeError, match="tinny"):
        dry_run("tinny")


def test_sums_made_in_inference_mode_can_be_used_outside():
    _, model = network()
    sums, watch = ScoreSums(2), LayerWatch(model, 2)
    with torch.inference_mode():  # as on a GPU, where the first batch moves them there
        sums.values, watch.active, watch.rates = sums.values.clone(), watch.active.clone(), watch.rates.clone()
        sums.add(torch.tensor(1.0), torch.zeros(2, 3, 4), torch.zeros(3, dtype=torch.long), lambda y: y.mean(0))
    sums.reset()
    watch.reset()
    sums.add(torch.tensor(1.0), torch.zeros(2, 3, 4), torch.zeros(3, dtype=torch.long), lambda y: y.mean(0))
    model.train()(torch.randn(2, 1, 16, 16))
    assert sums.scores().samples == 3 and watch.silent()[0] is not None
    watch.close()


def test_rates_are_those_of_the_check_and_silence_is_counted_neuron_by_neuron():
    _, model = network()
    watch = LayerWatch(model, 2)
    x = torch.randn(8, 1, 16, 16)
    seen = {}
    layer = model.get_submodule("stem.lif")
    layer.register_forward_hook(lambda m, i, out: seen.update(out=out))
    model.train()
    model(x)
    silent = float((seen["out"] != 0).any(0).logical_not().double().mean())
    assert watch.silent()[0] == pytest.approx(silent, abs=1e-12) and 0 < silent < 1
    model.eval()
    model(x)
    per_step = watch.step_rates()
    assert per_step[0] == pytest.approx((seen["out"] != 0).double().flatten(1).mean(1).tolist())
    watch.close()
    for (name, rate), steps in zip(firing_rates(model, x).items(), per_step):
        assert sum(steps) / 2 == pytest.approx(rate), name
    assert not layer.taps


@pytest.mark.parametrize("channelwise", ["false", "true"])
def test_counts_are_the_same_however_many_are_put_aside(monkeypatch, channelwise):
    actual = []
    for many in (1, 3, 512):
        monkeypatch.setattr(LayerWatch, "_MANY", many)
        _, model = network(f"neuron.channelwise={channelwise}")
        watch = LayerWatch(model.train(), 2)
        torch.manual_seed(1)
        for _ in range(4):
            model(torch.randn(4, 1, 16, 16))
        actual.append(watch.active)
        watch.active = actual[-1]
        assert torch.equal(watch.active, actual[-1])
    assert torch.equal(actual[0], actual[1]) and torch.equal(actual[0], actual[2])
    assert (actual[0][:, 0] > 0).all() and (actual[0][:, 0] < actual[0][:, 1]).all()


def test_gradient_norms_add_up_to_the_total_and_belong_to_layers():
    recipe, model = network()
    gradients = GradientWatch(model)
    build_objective(recipe, static=True)(model, torch.randn(4, 1, 16, 16), torch.arange(4)).loss.backward()
    norms, also = gradients.norms(torch.tensor(0.25, dtype=torch.float64), torch.tensor(3.0))
    assert also == [0.25, 3.0]
    total = torch.nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None])
    assert math.sqrt(sum(n * n for n in norms)) == pytest.approx(float(total), rel=1e-5)
    first = model.get_submodule("body.1")
    own = torch.nn.utils.get_total_norm([p.grad for p in first.parameters()])
    assert norms[gradients.groups.index("body.1.lif")] == pytest.approx(float(own), rel=1e-5)
    assert gradients.groups[-1] == "head"
    gradients.add(norms)
    rows = layer_rows(LayerWatch(model, 2), gradients)
    assert [row.layer for row in rows] == gradients.groups
    assert rows[0].threshold == pytest.approx(0.3) and rows[0].tau == pytest.approx(2.0)


def test_the_schedule_is_torchs_cosine_and_the_warm_up_is_a_line():
    schedule = load_recipe("tiny", ["schedule.epochs=10", "schedule.min_lr=0.001"]).schedule
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    reference = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10, 0.001)
    for epoch in range(10):
        for step in range(3):
            lr = 0.1 * lr_factor(schedule, 0.1, 3 * epoch + step, 3)
            assert lr == pytest.approx(optimizer.param_groups[0]["lr"], rel=1e-9)
        optimizer.step()
        reference.step()
    warm = load_recipe("tiny", ["schedule.epochs=10", "schedule.warmup=2"]).schedule
    assert [lr_factor(warm, 0.1, s, 3) for s in (0, 3, 6)] == pytest.approx([0.01, 0.505, 1.0])
    falling = load_recipe("tiny", ["schedule.name=step", "schedule.milestones=[1, 2]"]).schedule
    assert [lr_factor(falling, 0.1, s, 3) for s in (0, 3, 6)] == pytest.approx([1.0, 0.1, 0.01])


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (["neuron.name=plff"], "neuron.name = 'plff' is not valid; it must be one of lif, if"),
        (["neuron.name=if", "neuron.tau=2.0"], "neuron.tau: the neuron 'if' has no such option; valid: threshold"),
        (["neuron.init=zero", "neuron.init_momentum=0.5"], "neuron.init_momentum belongs to neuron.init = 'mp'"),
        (["neuron.tau=0.5"], "neuron.tau = 0.5: tau must be a number above 1"),
        (["norm.name=mpbn"], "norm.name = 'mpbn' is not valid"),
        (["model.name=foo"], "model.name = 'foo' is not valid; it must be one of cnn7"),
        (["model.options.foo=1"], "unknown key model.options.foo; valid: spiking_fc, dropout"),
        (["loss.name=x"], "loss.name = 'x' is not valid; it must be one of ce, tet"),
        (["loss.terms.sparsity.wight=1.0"], "unknown key loss.terms.sparsity.wight (did you mean weight?)"),
        (["loss.terms.guidance.weight=1.0", "data.timesteps=1"], "guidance between neighbouring time steps"),
    ],
)  # fmt: skip
def test_what_cannot_be_built_is_said_in_one_line(settings, expected):
    with pytest.raises(RecipeError) as caught:
        dry_run(load_recipe("tiny", settings))
    assert expected in str(caught.value) and "\n" not in str(caught.value)


def test_options_of_the_recipe_reach_the_neuron():
    settings = [
        "neuron.surrogate=arctan", "neuron.surrogate_width=3.0", "neuron.reset=hard", "neuron.detach=spike",
        "neuron.init_momentum=0.7", "neuron.learn=['tau']", "neuron.channelwise=true", "neuron.gradient=rs",
    ]  # fmt: skip
    layer = network(*settings)[1].get_submodule("stem.lif")
    assert layer.spec.surrogate.steepness == 3.0 and layer.spec.family == "rs"
    assert (layer.spec.reset.kind, layer.spec.reset.detach) == ("hard", "spike")
    assert layer.init.momentum == 0.7 and layer.channels == 8
    assert layer.learned == ("tau",)


def test_recomputed_blocks_give_the_same_gradients_statistics_and_names():
    results = []
    for recompute in (False, True):
        recipe, model = network(seed=1)
        if recompute:
            assert recompute_blocks(model) == len(list(model.body.children()))
        torch.manual_seed(5)
        outcome = build_objective(recipe, static=True)(model, torch.randn(4, 1, 16, 16), torch.arange(4))
        outcome.loss.backward()
        results.append((model.state_dict(), {n: p.grad for n, p in model.named_parameters()}))
    assert results[0][0].keys() == results[1][0].keys()
    for a, b in zip(results[0], results[1]):
        for name in a:
            assert torch.equal(a[name], b[name]), name


def test_the_average_of_weights_follows_its_definition_and_is_put_in_place():
    model = torch.nn.BatchNorm1d(2)
    average = WeightAverage(model, 0.75)
    average.average = {name: value.clone() for name, value in model.state_dict().items()}
    with torch.no_grad():
        model.weight.fill_(5.0)
        model.num_batches_tracked.fill_(7)
    average.update(1)
    assert average.average["weight"].tolist() == [2.0, 2.0] and int(average.average["num_batches_tracked"]) == 7
    with average.in_place():
        assert model.weight.tolist() == [2.0, 2.0]
    assert model.weight.tolist() == [5.0, 5.0]
