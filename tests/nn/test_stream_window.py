"""MP-Init in loops over `scan`: counted in `ss.window`, warned about and found by check_model without one."""

import copy
import sys
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import steadyspike as ss

EXAMPLES = Path(__file__).parent.parent.parent / "examples"


def current(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * 1.5 + 0.7


def streamed(layer, x, cuts=1):
    """The output of a loop of scans over parts of ``cuts`` steps."""
    state, outputs = None, []
    for part in x.split(cuts):
        out, state = layer.scan(part, state)
        outputs.append(out)
    return torch.cat(outputs)


@pytest.mark.parametrize("make", [ss.LIF, lambda **options: ss.MPS(init="mp", **options)], ids=["LIF", "MPS"])
@pytest.mark.parametrize("channels", [None, 3])
@pytest.mark.parametrize("cuts", [1, 2, 6])
def test_a_window_of_scans_updates_as_one_forward_does(make, channels, cuts):
    looped, whole = make(channels=channels).double(), make(channels=channels).double()
    for seed in range(3):
        x = current(6, 2, 3, 4, seed=seed).double()
        with ss.window(looped):
            out = streamed(looped, x, cuts)
        assert torch.equal(out, whole(x))
        assert looped.running_mean.abs().min() > 0
        torch.testing.assert_close(looped.running_mean, whole.running_mean, rtol=1e-12, atol=0)


def test_evaluation_in_a_window_does_not_update():
    layer = ss.LIF().eval()
    with ss.window(layer):
        streamed(layer, current(4, 2, 3))
    assert layer.running_mean.item() == 0


def test_two_streams_and_a_fork_are_all_counted():
    layer, twice = ss.LIF(), ss.LIF()
    a, b = current(4, 2, 3, seed=1), current(4, 2, 3, seed=2)
    with ss.window(layer):
        streamed(layer, a)
        streamed(layer, b)
    twice(torch.cat([a, b], 1))
    torch.testing.assert_close(layer.running_mean, twice.running_mean)
    forked, parts = ss.LIF(), ss.LIF()
    with ss.window(forked):
        _, state = forked.scan(a[:2])
        branch = state.fork()
        forked.scan(a[2:], state.detach())
        forked.scan(b[2:], branch)
    parts(torch.cat([a, torch.cat([a[:2], b[2:]])], 1))
    torch.testing.assert_close(forked.running_mean, parts.running_mean)


def test_a_stream_that_goes_on_in_a_second_window_counts_there_anew():
    layer = ss.LIF(threshold=1.0, init=ss.MPInit(momentum=1.0))
    spike, silence = torch.full((1, 1, 1), 3.0), torch.zeros(1, 1, 1)
    with ss.window(layer):
        _, state = layer.scan(spike)
    mean = layer.running_mean.clone()
    with ss.window(layer):
        layer.scan(silence, state)
    assert torch.equal(layer.running_mean, mean)  # nothing fired in the second window


def test_copies_have_no_open_window_and_an_inner_window_is_a_sequence_of_its_own():
    layer = ss.LIF()
    with ss.window(layer):
        layer.scan(current(1, 2, 3))
        assert copy.deepcopy(layer).stream_window is None
        with ss.window(layer):
            layer.scan(current(3, 2, 3))
        inner = layer.running_mean.clone()
        assert inner.item() != 0
    assert not torch.equal(layer.running_mean, inner) and layer.stream_window is None


def test_checkpointed_steps_count_once():
    plain, saved = ss.LIF().double(), ss.LIF().double()
    x = current(4, 2, 3).double()

    def step(layer, x_t, u):
        out, state = layer.scan(x_t, u)
        return out, state

    for layer, wrap in ((plain, step), (saved, lambda *a: checkpoint(step, *a, use_reentrant=False))):
        leaf = x.clone().requires_grad_()
        with ss.window(layer):
            out, state = wrap(layer, leaf[:2], None)
            more, _ = step(layer, leaf[2:], state)
        (out.sum() + more.sum()).backward()
    assert torch.equal(plain.running_mean, saved.running_mean)


def test_training_by_scan_without_a_window_warns_once_for_each_place():
    layer, x = ss.LIF(), current(3, 2, 4)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for _ in range(3):
            streamed(layer, x)
    assert [str(w.message).count("ss.window") for w in caught] == [1]
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        streamed(ss.LIF(init="zero"), x)
        streamed(layer.eval(), x)


class Loop(nn.Module):
    """A network whose forward is a loop of scans, in a window or not."""

    def __init__(self, marked):
        super().__init__()
        self.fc, self.norm, self.lif, self.head = nn.Linear(6, 8), nn.LayerNorm(8), ss.LIF(), nn.Linear(8, 3)
        self.marked = marked

    def forward(self, x):
        y = self.norm(self.fc(x))
        if not self.marked:
            return self.head(streamed(self.lif, y))
        with ss.window(self):
            return self.head(streamed(self.lif, y))


def test_check_model_finds_a_mean_that_never_changes():
    torch.manual_seed(0)
    x = 2 * torch.randn(4, 6, 6)
    report = ss.check_model(Loop(marked=False), x)
    (check,) = report.failures
    assert (check.name, check.layer) == ("statistics", "lif") and "ss.window" in check.message
    assert ss.check_model(Loop(marked=True), x).ok


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # torch's compiler looks at every tensor of the state
def test_a_compiled_step_in_a_window_updates():
    layer, eager = ss.LIF().double(), ss.LIF().double()
    x = current(3, 2, 4).double()
    step = torch.compile(lambda x_t, state: layer.scan(x_t, state), backend="eager")
    state = None
    with ss.window(layer):
        for x_t in x.split(1):
            _, state = step(x_t, state)
    eager(x)
    torch.testing.assert_close(layer.running_mean, eager.running_mean, rtol=1e-12, atol=0)


def test_the_recurrent_example_learns_and_starts_at_its_mean(monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    monkeypatch.delitem(sys.modules, "recurrent", raising=False)
    import recurrent

    torch.manual_seed(0)
    model = recurrent.Recurrent(hidden=64)
    assert ss.check_model(model, recurrent.digits()[0][:, :8]).ok
    assert recurrent.train(model, epochs=4) > 0.6
    assert 0.05 < model.lif.running_mean.item() < 1.0
