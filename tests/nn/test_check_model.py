"""check_model passes a sound network and names the layer of each kind of broken one."""

import pytest
import torch
from torch import nn

import steadyspike as ss
from steadyspike.nn.model_check import firing_rates
from steadyspike.nn.time import Folded


class Net(nn.Module):
    """Conv-BN-LIF, FC-LIF, FC; ``order`` may scan the wrong axis in the second LIF."""

    def __init__(self, order="time", gain=1.0):
        super().__init__()
        self.conv = Folded(nn.Sequential(nn.Conv2d(2, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4)))
        self.lif1 = ss.LIF()
        self.fc1 = nn.Linear(4 * 36, 16)
        self.lif2 = ss.LIF()
        self.fc2 = nn.Linear(16, 3)
        self.order = order
        nn.init.normal_(self.fc1.weight, std=gain)

    def forward(self, x):
        h = self.fc1(self.lif1(self.conv(x)).flatten(2))
        if self.order == "transposed":
            h = self.lif2(h.transpose(0, 1)).transpose(0, 1)
        elif self.order == "folded":
            h = self.lif2(h.flatten(0, 1)[:, None])[:, 0].unflatten(0, h.shape[:2])
        else:
            h = self.lif2(h)
        return self.fc2(h)


@pytest.fixture
def example():
    torch.manual_seed(3)
    return torch.randn(4, 5, 2, 6, 6)


def failed(report, name):
    return [c for c in report.checks if c.name == name and not c.ok]


def test_a_sound_network_passes_and_is_left_alone(example):
    model = Net()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    report = ss.check_model(model, example)
    assert report.ok, str(report)
    assert report.require() is report
    assert {c.name for c in report.checks} == {
        "output", "finite", "repeatable", "batch", "causal", "gradient", "activity", "range", "kernel",
    }  # fmt: skip
    assert model.training and all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert all(p.grad is None and p.dtype == torch.float32 for p in model.parameters())


@pytest.mark.parametrize("order", ["transposed", "folded"])
def test_a_neuron_that_scans_the_batch_as_time_is_named(example, order):
    report = ss.check_model(Net(order), example)
    (check,) = failed(report, "batch")
    assert check.layer == "lif2" and "scanned as time" in check.message
    with pytest.raises(RuntimeError, match="lif2"):
        report.require()


def test_silent_and_saturated_layers_are_named(example):
    report = ss.check_model(Net(gain=1e-4), example)
    (check,) = failed(report, "activity")
    assert check.layer == "lif2" and "never fires" in check.message
    assert any(c.layer == "fc1.weight" for c in failed(report, "gradient"))
    model = Net()
    model.fc1.bias.data.fill_(1e4)
    (check,) = failed(ss.check_model(model, example), "activity")
    assert check.layer == "lif2" and "every step" in check.message


def test_unused_parameters_are_named(example):
    model = Net()
    model.unused = nn.Linear(2, 2)
    layers = {c.layer for c in failed(ss.check_model(model, example), "gradient")}
    assert layers == {"unused.weight", "unused.bias"}


def test_non_finite_layers_are_named(example):
    model = Net()
    model.fc1.weight.data[0, 0] = float("nan")
    checks = failed(ss.check_model(model, example), "finite")
    assert checks and checks[0].layer == "lif2"


class Stateful(nn.Module):
    """A layer of the kind that needs a reset by hand."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))
        self.seen = 0.0

    def forward(self, x):
        self.seen = self.seen + x.detach().sum()
        return self.weight * x + self.seen


def test_state_carried_over_is_found(example):
    report = ss.check_model(nn.Sequential(Net(), Stateful()), example)
    assert failed(report, "repeatable")


class Lookahead(nn.Module):
    def forward(self, x):
        return x + x.mean(0, keepdim=True)


def test_outputs_that_see_the_future_are_found(example):
    assert failed(ss.check_model(nn.Sequential(Lookahead(), Net()), example), "causal")


def test_wrong_output_layout_is_found(example):
    class BatchFirst(Net):
        def forward(self, x):
            return super().forward(x).transpose(0, 1)

    assert failed(ss.check_model(BatchFirst(), example), "output")


def test_collapsed_threshold_is_found(example):
    model = Net()
    model.lif1.k.data.fill_(-20.0)
    (check,) = failed(ss.check_model(model, example), "range")
    assert check.layer == "lif1"


def test_an_example_of_one_sample_is_refused(example):
    with pytest.raises(ValueError, match="at least 2"):
        ss.check_model(Net(), example[:, :1])


def test_static_input():
    class Static(Net):
        def forward(self, x):
            return super().forward(x.expand(3, *x.shape))

    torch.manual_seed(0)
    report = ss.check_model(Static(), torch.randn(4, 2, 6, 6), batch_dim=0)
    assert report.ok, str(report)


def test_a_branch_that_starts_at_zero_is_no_alarm(example):
    class Residual(Net):
        def __init__(self):
            super().__init__()
            self.branch = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
            nn.init.zeros_(self.branch[1].weight)

        def forward(self, x):
            y = super().forward(x)
            return y + self.branch(y)

    report = ss.check_model(Residual(), example)
    assert report.ok, str(report)


def test_integer_tokens_and_models_of_fixed_precision():
    class Tokens(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.norm, self.lif = nn.Embedding(7, 8), nn.LayerNorm(8), ss.LIF(threshold=0.5)

        def forward(self, x):
            return self.lif(self.norm(self.embed(x)))

    torch.manual_seed(0)
    report = ss.check_model(Tokens(), torch.randint(7, (4, 5)))
    assert report.ok, str(report)

    class Fixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = Net()

        def forward(self, x):
            return self.net(x.float())

    report = ss.check_model(Fixed(), torch.randn(4, 5, 2, 6, 6))
    assert report.ok, str(report)


def test_nothing_to_train(example):
    model = Net().requires_grad_(False)
    report = ss.check_model(model, example)
    assert report.ok, str(report)


def test_random_networks_are_called_random(example):
    class Noisy(Net):
        def forward(self, x):
            return super().forward(x + torch.rand_like(x))

    model = Noisy()
    state = torch.get_rng_state()
    failures = ss.check_model(model, example).failures
    assert [c.name for c in failures] == ["repeatable"] and "random numbers" in failures[0].message
    assert torch.equal(state, torch.get_rng_state())


def test_one_cause_gives_one_alarm(example):
    model = Net()
    model.fc2.weight.data[0, 0] = float("nan")
    assert [c.name for c in ss.check_model(model, example).failures] == ["finite"]

    class Pair(Net):
        def forward(self, x):
            return super().forward(x), x

    assert [c.name for c in ss.check_model(Pair(), example).failures] == ["output"]


def test_a_leak_in_any_sample_is_found(example):
    class Leak(Net):
        def forward(self, x):
            y = super().forward(x)
            if x.shape[1] == 5:
                y = y + torch.tensor([0, 0, 1.0, 0, 0], dtype=y.dtype)[:, None] * y[:, :1]
            return y

    (check,) = failed(ss.check_model(Leak(), example), "batch")
    assert "sample 2" in check.message


def test_a_leak_constant_that_ran_away_is_found(example):
    model = Net()
    model.lif1.w.data.fill_(200.0)
    assert failed(ss.check_model(model, example), "range")


class Averaged(nn.Module):
    """A network that returns [B, classes]."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.lif, self.last = nn.Linear(6, 8), ss.LIF(threshold=0.2), nn.Linear(8, 3)

    def forward(self, x):
        return self.last(self.lif(self.first(x))).mean(0)


@pytest.mark.parametrize("shape", [(4, 3, 6), (3, 3, 6), (8, 2, 6)])
def test_a_network_that_averages_over_time_is_checked_too(shape):
    model = Averaged()
    x = torch.rand(*shape)
    report = ss.check_model(model, x).require()
    assert "causal" not in {c.name for c in report.checks} and "batch" in {c.name for c in report.checks}
    assert model(x).shape == (shape[1], 3), "the model itself does not change"


def test_a_leak_between_samples_is_found_in_an_averaging_network(example):
    class Leaking(Averaged):
        def forward(self, x):
            return super().forward(x) + x.mean()

    x = torch.rand(4, 3, 6)
    assert failed(ss.check_model(Leaking(), x), "batch")


class CalledTwice(nn.Module):
    """One neuron object for two layers; only its first call fires."""

    def __init__(self):
        super().__init__()
        self.lif, self.fc = ss.LIF(), nn.Linear(6, 6)
        nn.init.constant_(self.fc.weight, -1.0)

    def forward(self, x):
        return self.lif(x) + self.lif(self.fc(x) - 100)


def test_activity_counts_every_call_of_a_neuron():
    model, x = CalledTwice(), torch.full((2, 3, 6), 5.0)
    assert firing_rates(model, x)["lif"] == 0.5


def test_a_model_in_evaluation_mode_has_the_rates_of_analyse(example):
    """Its own statistics count, not those of the example."""
    model = Net().eval()
    with torch.no_grad():
        model.conv.layer[1].running_var.fill_(0.5)
    rates = [float(layer.rates.mean()) for layer in ss.analyse(model, example).layers]
    (check,) = [c for c in ss.check_model(model, example).checks if c.name == "activity"]
    assert check.ok and check.message == f"firing rates from {min(rates):.3f} to {max(rates):.3f} in evaluation mode"
    with torch.no_grad():
        model.conv.layer[1].running_var.fill_(1e8)
    assert ss.analyse(model, example).layers[0].active == 0
    silent = failed(ss.check_model(model, example), "activity")
    assert silent[0].layer == "lif1" and "measured in evaluation mode" in silent[0].message
    assert not failed(ss.check_model(model.train(), example), "activity")


def test_a_static_batch_that_is_read_as_frames_is_recognised():
    class OwnSteps(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc, self.lif = nn.Linear(6, 3), ss.LIF()

        def forward(self, x):  # [B, 6] -> [T, B, 3]
            return self.lif(self.fc(x).expand(4, -1, -1))

    (failure,) = ss.check_model(OwnSteps(), torch.randn(8, 6), batch_dim=1).failures[:1]
    assert failure.name == "output" and failure.message.endswith("use batch_dim=0")
    assert not failed(ss.check_model(OwnSteps(), torch.randn(8, 6), batch_dim=0), "output")
