"""`ss.stabilize` on SpikingJelly's models: TrSG, learned V and tau, MP-Init, in the user's own loop."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

import steadyspike as ss
from steadyspike.core.spec import Reset
from steadyspike.core.surrogate import ArcTan
from steadyspike.interop.adopted import Adopted
from tests.interop.compare import assert_equal, current

pytest.importorskip("spikingjelly.activation_based", reason="SpikingJelly is not installed")
from spikingjelly.activation_based import functional, layer, neuron, surrogate

pytestmark = pytest.mark.peer
T, B = 5, 4


def lif_node(mode: str = "m", **options) -> neuron.LIFNode:
    return neuron.LIFNode(v_reset=None, surrogate_function=surrogate.ATan(2.0), step_mode=mode, **options)


def stepped(model: nn.Module, x: Tensor) -> Tensor:
    out = torch.stack([model(x_t) for x_t in x])
    functional.reset_net(model)
    return out


@pytest.mark.parametrize("mode", ["s", "m"])
def test_a_stabilised_neuron_is_ss_lif(mode: str) -> None:
    """The same outputs, gradients and running mean as `ss.LIF`, over several windows, whatever the step mode."""
    theirs = ss.stabilize(lif_node(mode, tau=1.7, v_threshold=0.8), report=None).double()
    ours = ss.LIF(0.8, 1.7, surrogate=ArcTan(2.0)).double()
    with torch.no_grad():
        for mine, other in ((ours.k, theirs.k), (ours.w, theirs.w)):
            mine.copy_(other)
    run = stepped if mode == "s" else lambda m, x: m(x)
    for seed in range(3):
        x = current(T, B, 3, seed=seed)
        theirs.zero_grad(), ours.zero_grad()
        assert torch.equal(ours(x), run(theirs, x))
        ours(x).square().sum().backward()
        run(theirs, x).square().sum().backward()
        for name in ("k", "w"):
            torch.testing.assert_close(getattr(theirs, name).grad, getattr(ours, name).grad)
        torch.testing.assert_close(theirs.running_mean, ours.running_mean)
    assert float(ours.running_mean) != 0


def test_a_window_collects_statistics_over_the_whole_sequence() -> None:
    """Single steps in ``with ss.window``: the same running mean as one multi-step call; nothing without training."""
    single, multi = (ss.stabilize(lif_node(mode).double(), report=None) for mode in "sm")
    x = current(T, B, 3)
    multi(x)
    with ss.window(single):
        for x_t in x:
            single(x_t)
        assert float(single.running_mean) == 0
    assert torch.equal(single.running_mean, multi.running_mean) and float(multi.running_mean) != 0
    before = single.running_mean.clone()
    single.eval()
    with ss.window(single):
        for x_t in x:
            single(x_t)
    assert torch.equal(single.running_mean, before)


def test_a_window_carries_parts_of_a_long_sequence() -> None:
    part, multi = ss.stabilize(lif_node().double(), report=None), ss.stabilize(lif_node().double(), report=None)
    x = current(6, B, 3)
    expected = multi(x)
    with ss.window(part):
        actual = torch.cat([part(x[:2]), part(x[2:3]), part(x[3:])])
    assert torch.equal(actual, expected)
    torch.testing.assert_close(part.running_mean, multi.running_mean)


def test_a_new_batch_size_starts_a_new_window() -> None:
    node = ss.stabilize(lif_node("s").double(), report=None)
    for x_t in current(T, B, 3):
        node(x_t)
    node(current(2, 3))
    assert float(node.running_mean) != 0


def test_the_window_ends_in_eval_mode_too() -> None:
    """The statistics of the last training window are not lost if eval() comes before the reset."""
    node = ss.stabilize(lif_node("s").double(), report=None)
    for x_t in current(T, B, 3):
        node(x_t)
    node.eval()
    functional.reset_net(node)
    assert float(node.running_mean) != 0


def network() -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential(
        layer.Linear(6, 24),
        lif_node(),
        layer.Linear(24, 24),
        neuron.ParametricLIFNode(),
        layer.Linear(24, 4),
        neuron.IFNode(),
    )
    functional.set_step_mode(model, "m")
    for index in (0, 2, 4):
        nn.init.normal_(model[index].weight, mean=0.1, std=0.6)
    return model.double()


def test_what_is_learned_and_what_is_not() -> None:
    model = ss.stabilize(network(), report=None)
    names = {n for n, _ in model.named_parameters()} - {n for n, _ in network().named_parameters()}
    assert names == {"1.k", "1.w", "3.k", "5.k"}  # the ParametricLIFNode has its w already, the IFNode has no leak
    assert [m.learned for m in model.modules() if isinstance(m, Adopted)] == [("threshold", "tau")] * 2 + [
        ("threshold",)
    ]
    (row,) = [r for r in model.conversion.rows if r.layer == "5"]
    assert any("no leak" in remark for remark in row.remarks)
    model(current(T, B, 6)).square().sum().backward()
    assert all(p.grad is not None and bool(p.grad.any()) for p in model.parameters())
    groups = ss.parameter_groups(model, 0.1)
    assert len(groups[1]["params"]) == 5


def test_a_state_of_the_original_loads_strictly() -> None:
    """Constants that the original does not have keep their values; a part of our own state is reported."""
    model, original = ss.stabilize(network(), report=None), network()
    model(current(T, B, 6))
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.3)
    trained = copy.deepcopy(model.state_dict())
    model.load_state_dict({"0.weight": trained["0.weight"]}, strict=False)
    assert torch.equal(model[1].k, trained["1.k"])
    model.load_state_dict(original.state_dict())
    expected = {**trained, **original.state_dict()}
    assert all(torch.equal(value, expected[name]) for name, value in model.state_dict().items())
    with pytest.raises(RuntimeError, match=r"1\.w"):
        model.load_state_dict({n: v for n, v in trained.items() if n != "1.w"})
    again = ss.stabilize(network(), report=None)
    again.load_state_dict(trained)
    assert all(torch.equal(a, b) for a, b in zip(again.state_dict().values(), trained.values()))
    with pytest.raises(RuntimeError, match="Unexpected"):
        again.load_state_dict({**trained, "1.what": torch.zeros(1)})


def test_convert_then_stabilise_then_again() -> None:
    model = ss.convert(network(), report=None)
    ss.stabilize(model, report=None)
    with torch.no_grad():
        model[1].k.add_(0.3)
    k = model[1].k
    ss.stabilize(model, report=None)
    assert model[1].k is k and len(model.conversion.rows) == 3
    ss.convert(model, report=None)  # nothing left to convert
    assert model[1].k is k


def test_the_originals_attributes_show_the_learned_values() -> None:
    node = ss.stabilize(lif_node(tau=4.0, v_threshold=0.5), report=None)
    assert node.v_threshold == pytest.approx(0.5) and node.tau == pytest.approx(4.0)
    node.v_threshold, node.tau = 0.7, 3.0
    assert node.threshold.item() == pytest.approx(0.7) and (1 / node.leak).item() == pytest.approx(3.0)
    ss.undo(node)
    assert (node.v_threshold, node.tau) == (0.5, 4.0)


def test_skip_and_options() -> None:
    model = ss.stabilize(network(), gradient="rs", learn="threshold", init="zero", skip=["5"], report=None)
    assert type(model[5]) is neuron.IFNode
    assert model[1].spec.family == "rs" and model[1].learned == ("threshold",)
    with pytest.raises(ValueError, match="nosuch"):
        ss.stabilize(network(), skip=["nosuch"], report=None)
    with pytest.raises(ValueError, match="gradient family"):
        ss.stabilize(network(), gradient="nosuch", report=None)
    with pytest.raises(ValueError, match="cannot learn"):
        ss.stabilize(network(), learn=("k",), report=None)


def test_a_threshold_below_rest_is_converted_only() -> None:
    node = neuron.LIFNode(v_threshold=-0.5, v_reset=0.0, step_mode="m")
    model = nn.Sequential(copy.deepcopy(node))
    ss.stabilize(model, report=None)
    assert "V > 0" in str(model.conversion)
    x = current(T, B, 3) - 1
    assert torch.equal(model(x), node(x))


def test_a_rest_that_is_not_zero_is_kept() -> None:
    """V is counted from rest: the same spikes as a neuron whose potentials are all shifted."""
    shifted = ss.stabilize(neuron.LIFNode(v_threshold=0.4, v_reset=-0.6, step_mode="m").double(), report=None)
    plain = ss.stabilize(neuron.LIFNode(v_threshold=1.0, v_reset=0.0, step_mode="m").double(), report=None)
    for seed in range(2):
        x = current(T, B, 3, seed=seed)
        torch.testing.assert_close(shifted(x), plain(x))


def test_the_paper_reset_with_a_called_surrogate() -> None:
    """A surrogate that the kernels do not have: TrSG's output and gradient by hand."""
    node = ss.stabilize(neuron.LIFNode(surrogate_function=surrogate.Erf(), step_mode="m").double(), report=None)
    with torch.no_grad():
        node.k.fill_(0.2)
    v, x = node.threshold.item(), current(1, B, 3).requires_grad_()
    out = node(x)
    m = x.detach() / 2
    assert torch.equal(out != 0, m >= v)
    out.sum().backward()
    z = 2.0 * (m / v - 1)
    torch.testing.assert_close(x.grad, 0.5 * 2 / torch.pi**0.5 * torch.exp(-z * z))  # d(V S)/dM = f'(M/V - 1)


def test_training_lowers_the_loss_in_spikingjellys_loop() -> None:
    model = ss.stabilize(network().float(), report=None)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    x, target = current(T, 16, 6).float(), torch.arange(16) % 4
    losses = []
    for _ in range(40):
        loss = nn.functional.cross_entropy(5 * model(x).mean(0), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        functional.reset_net(model)
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.8 * losses[0]


def test_the_table_names_every_constant_and_the_findings_of_the_check() -> None:
    shown: list[str] = []
    x = current(T, B, 6)
    model = ss.stabilize(network(), x, report=lambda conversion: shown.append(str(conversion)))
    (text,) = shown
    for part in ("tau=2", "v_threshold=1", "ATan(alpha=2.0", "V=1", "gradient='trsg'", "MPInit", "batch of B equals"):
        assert part in text
    assert model.conversion.check is not None and model.conversion.check.ok
    assert_equal_to_itself(model, x)


def assert_equal_to_itself(model: nn.Module, x: Tensor) -> None:
    """The check did not change the model: no state, no statistics."""
    fresh = ss.stabilize(network(), report=None)
    assert_equal(lambda m, x: m(x), fresh, model, x)


class BatchAsTime(nn.Module):
    """The mistake of a published model: the last neuron gets [B, ...] without a time axis, in multi-step mode."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.linear, self.last = lif_node(), nn.Linear(6, 6), lif_node()

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.linear(self.first(x).mean(0)) * 3)


def test_a_batch_that_is_scanned_as_time_is_found() -> None:
    torch.manual_seed(0)
    model = BatchAsTime().double()
    ss.convert(model, current(T, B, 6), report=None)
    (check,) = [c for c in model.conversion.check.failures if c.name == "batch"]
    assert check.layer == "last" and "scanned as time" in check.message
    assert "scanned as time" in str(model.conversion)


def test_a_single_step_model_is_checked_in_a_loop() -> None:
    torch.manual_seed(0)
    model = network()
    functional.set_step_mode(model, "s")
    ss.convert(model, current(T, B, 6), report=None)
    assert model.conversion.check.ok, model.conversion
    assert isinstance(model[1].v, float)


class OwnLoop(nn.Module):
    """A forward that takes [T, B, ...] and loops over time itself."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.node = nn.Linear(6, 6), neuron.LIFNode()

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([self.node(3 * self.linear(x_t)) for x_t in x])


def test_a_model_with_its_own_loop_over_time_is_called_once() -> None:
    torch.manual_seed(0)
    model = OwnLoop().double()
    model.linear.eval()
    ss.convert(model, current(T, B, 6), report=None)
    assert model.conversion.check.ok, model.conversion
    assert model.training and not model.linear.training


def test_a_finding_about_the_model_itself_has_no_other_name() -> None:
    node = ss.convert(lif_node(), torch.zeros(T, B, 3), report=None)
    (check,) = [c for c in node.conversion.check.failures if c.name == "activity"]
    assert check.layer == "" and "the model itself never fires" in check.message


def test_a_model_without_neurons_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    ss.convert(nn.Sequential(nn.Linear(2, 2)))
    assert "no neuron of SpikingJelly, snnTorch or Norse" in capsys.readouterr().out


def test_detached_reset_is_kept() -> None:
    node = ss.stabilize(lif_node(detach_reset=True), report=None)
    assert node.spec.reset == Reset("soft", detach=True)


class Holder(nn.Module):
    """A neuron at two places, and a submodule with the name that the report would take."""

    def __init__(self) -> None:
        super().__init__()
        self.first = lif_node()
        self.again, self.conversion = self.first, nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.again(3 * self.conversion(self.first(x)))


def test_a_neuron_at_two_places_is_one_and_named() -> None:
    shown: list[str] = []
    model = Holder()
    ss.convert(model, report=lambda conversion: shown.append(str(conversion)))
    assert model.first is model.again and isinstance(model.conversion, nn.Linear)
    assert "first, again" in shown[0]
    model(current(T, B, 6).float()).sum().backward()
    assert type(ss.undo(model).first) is neuron.LIFNode


def test_a_stream_of_a_neuron_without_a_plain_layer_points_to_the_window() -> None:
    model = ss.convert(nn.Sequential(nn.Linear(3, 3), neuron.LIFNode(v_threshold=-1.0)), report=None).eval()
    with pytest.raises(ValueError, match=r"1: no plain LIF layer is equal to it: V = -1 .*; use `with ss.window"):
        ss.stream(model)
