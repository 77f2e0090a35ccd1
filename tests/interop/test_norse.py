"""Norse 1.1's LIFBoxCell, LIFCell and LIF, converted: the same spikes, states and gradients."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

import steadyspike as ss
from steadyspike.interop.adopted import Adopted
from tests.interop.compare import assert_equal, current

norse = pytest.importorskip("norse.torch", reason="Norse is not installed")
from norse.torch.functional.lif import LIFParameters  # noqa: E402
from norse.torch.functional.lif_box import LIFBoxParameters  # noqa: E402
from norse.torch.functional.reset import reset_subtract  # noqa: E402

pytestmark = pytest.mark.peer
T, B = 8, 4
tensor = torch.as_tensor


def converted(model: nn.Module) -> nn.Module:
    return ss.convert(copy.deepcopy(model), report=None)


def stepped(cell: nn.Module, x: Tensor) -> tuple[Tensor, ...]:
    """A user's loop with explicit state: spikes and the state after every step."""
    state, outs = None, []
    for x_t in x:
        z, state = cell(x_t, state)
        outs.append(torch.stack([z, *state]))
    return (torch.stack(outs),)


def box(**p) -> nn.Module:
    return norse.LIFBoxCell(LIFBoxParameters(tau_mem_inv=tensor(300.0), **p))


def cell(**p) -> nn.Module:
    return norse.LIFCell(LIFParameters(tau_mem_inv=tensor(300.0), **p))


PARAMETERS = {
    "plain": {},
    "v_leak": {"v_leak": tensor(-0.3), "v_reset": tensor(-0.3), "v_th": tensor(0.4)},
    "v_reset": {"v_reset": tensor(-0.2), "v_th": tensor(0.5)},
}


@pytest.mark.parametrize("method", ["super", "triangle", "tanh", "circ", "heavi_erfc"])
@pytest.mark.parametrize("name", PARAMETERS)
@pytest.mark.parametrize("make", [box, cell])
def test_every_cell(make, name: str, method: str) -> None:
    layer = make(method=method, alpha=tensor(1.5), **PARAMETERS[name])
    ours = converted(layer)
    assert isinstance(ours, Adopted)
    assert (ours.why_no_kernel() is None) == (method in ("triangle", "tanh") and name != "v_reset")
    # Norse's parameters are float32 also in a float64 model.
    assert_equal(stepped, layer, ours, 2 * current(T, B, 3), tolerance=1e-6)
    exact = [p.double() if isinstance(p, Tensor) else p for p in layer.p]
    layer.p = type(layer.p)(*exact)
    assert_equal(stepped, layer, converted(layer), 2 * current(T, B, 3))


@pytest.mark.parametrize("v_leak", [0.0, -0.2])
def test_reset_by_subtraction(v_leak: float) -> None:
    layer = box(reset_method=reset_subtract, v_leak=tensor(v_leak).double(), v_th=tensor(0.5).double())
    layer.p = layer.p._replace(tau_mem_inv=tensor(300.0).double())
    assert_equal(stepped, layer, converted(layer), 2 * current(T, B, 3))


def test_gradients_reach_norses_own_parameters() -> None:
    gradients = []
    for change in (copy.deepcopy, converted):
        v_th = nn.Parameter(tensor(0.5).double())
        layer = change(box(method="triangle"))
        layer.p = layer.p._replace(v_th=v_th, tau_mem_inv=nn.Parameter(tensor(300.0).double()))
        stepped(layer, 2 * current(T, B, 3))[0].square().sum().backward()
        gradients.append((v_th.grad, layer.p.tau_mem_inv.grad))
    for theirs, ours in zip(*gradients):
        assert bool(theirs.any())
        torch.testing.assert_close(ours, theirs)


def test_the_multi_step_lif() -> None:
    layer = norse.LIF(LIFParameters(tau_mem_inv=tensor(300.0).double(), tau_syn_inv=tensor(400.0).double()))

    def run(m: nn.Module, x: Tensor) -> tuple[Tensor, ...]:
        first, state = m(x[:3])
        second, state = m(x[3:], state)
        return torch.cat([first, second]), *state

    assert_equal(run, layer, converted(layer), 2 * current(T, B, 3), tolerance=1e-6)


def sequential() -> nn.Module:
    """Norse's usual network: layers and cells in a SequentialState."""
    torch.manual_seed(0)
    p = LIFParameters(tau_mem_inv=tensor(300.0), method="tanh", alpha=tensor(2.0))
    cells = norse.LIFCell(p), norse.LIFBoxCell(LIFBoxParameters(tau_mem_inv=tensor(400.0))), norse.LICell()
    model = norse.SequentialState(nn.Linear(6, 12), cells[0], nn.Linear(12, 5), cells[1], cells[2])
    for layer in (model[0], model[2]):
        nn.init.normal_(layer.weight, mean=0.5, std=2.0)
    return model


def network_run(model: nn.Module, x: Tensor) -> Tensor:
    state, outs = None, []
    for x_t in x:
        out, state = model(x_t, state)
        outs.append(out)
    return torch.stack(outs)


def test_a_sequential_state_network() -> None:
    model, x = sequential(), 3 * current(T, B, 6).float()
    ours = converted(model)
    rows = {row.layer: row for row in ours.conversion.rows}
    assert not rows["1"].left and not rows["3"].left and rows["4"].left  # LICell is a readout without spikes
    results = []
    for m in (model, ours):
        out = network_run(m, x)
        out.square().sum().backward()
        results.append([out, *(p.grad for p in m.parameters())])
    assert bool(results[0][0].any())
    for theirs, mine in zip(*results):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-6)
    assert model.state_dict().keys() == ours.state_dict().keys()


def test_lift_scans_a_converted_cell() -> None:
    x = 2 * current(T, B, 6)
    for make in (box, cell):
        model = norse.Lift(make(method="triangle", alpha=tensor(0.5)))
        ours = converted(model)

        def run(m: nn.Module, x: Tensor) -> tuple[Tensor, ...]:
            out, state = m(x)
            later, state = m((x, state))
            return out, later, *state

        assert_equal(run, model, ours, x, tolerance=1e-6)
        assert "ScannedLift" in str(type(ours).__mro__)
        twin = copy.deepcopy(ours)
        assert torch.equal(twin(x)[0], ours(x)[0])
        ss.undo(ours)
        assert type(ours) is norse.Lift and type(ours.lifted_module) is type(model.lifted_module)
        assert_equal(run, model, ours, x)
    assert type(converted(norse.Lift(nn.Linear(6, 6)))) is norse.Lift


def test_stabilise_in_the_users_loop() -> None:
    model, x = ss.stabilize(sequential(), report=None), 3 * current(T, B, 6).float()
    names = {n for n, _ in model.named_parameters()}
    assert {"1.k", "1.w", "3.k", "3.w"} <= names
    network_run(model, x).square().sum().backward()
    assert all(p.grad is not None for p in model.parameters())
    network_run(model, x)  # state None: the window before ends
    first = model[1].running_mean.clone()
    assert float(first) != 0
    with ss.window(model):
        network_run(model, x)
    assert not torch.equal(model[1].running_mean, first)
    ss.undo(model)
    assert type(model[1]) is norse.LIFCell


def test_a_reset_that_is_not_rest_is_converted_only() -> None:
    model = nn.Sequential(box(v_reset=tensor(-0.2)))
    ss.stabilize(model, report=None)
    assert "not stabilised" in str(model.conversion) and not list(model.parameters())


LEFT = {
    "LIFRecurrentCell is not one": lambda: norse.LIFRecurrentCell(3, 3),
    "LIFAdExCell is not one": lambda: norse.LIFAdExCell(),
    "one value per neuron": lambda: box(v_th=torch.ones(3)),
    "method is 'adjoint'": lambda: cell(method="adjoint"),
    "records its states": lambda: norse.LIF(record_states=True),
}


@pytest.mark.parametrize("reason", LEFT)
def test_what_is_left_is_named_with_the_reason(reason: str) -> None:
    model = nn.Sequential(LEFT[reason]())
    ss.convert(model, report=None)
    assert reason in str(model.conversion) and not model.conversion.converted


def test_the_check_runs_a_cell_in_a_loop() -> None:
    for model in (sequential(), cell(method="tanh", alpha=tensor(2.0))):
        ss.convert(model, 3 * current(T, B, 6).float(), report=None)
        names = {c.name: c.ok for c in model.conversion.check.checks}
        assert names["output"] and names["repeatable"] and names["batch"] and names["causal"], model.conversion
