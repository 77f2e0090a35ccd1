"""Probes record what the scan does, change nothing and leave nothing behind."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from steadyspike.core.reference_scan import reference_scan
from steadyspike.nn.factory import Site
from steadyspike.nn.lif import LIF
from steadyspike.nn.membrane_health import HealthError, health
from steadyspike.nn.memory.pack import save_memory
from steadyspike.nn.neurons import NEURONS, neuron_factory
from steadyspike.nn.norm import TDBN
from steadyspike.nn.probe import RECORDS, Recording, probe
from steadyspike.nn.time import Folded

T, B, C = 4, 3, 2
SITE = Site(C, (3, 3), T)


def net() -> nn.Sequential:
    torch.manual_seed(0)
    blocks = [nn.Sequential(Folded(nn.Conv2d(C, C, 3, padding=1)), LIF(gradient=g)) for g in ("trsg", "as")]
    return nn.Sequential(*blocks).double()


def example() -> Tensor:
    return 3 * torch.randn(T, B, C, 3, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def test_results_gradients_and_statistics_are_those_of_a_run_without_a_probe() -> None:
    plain, watched = net(), net()
    outs = []
    for model in (plain, watched):
        x = example().requires_grad_()
        if model is watched:
            with probe(model) as seen:
                out = model(x)
        else:
            out = model(x)
        out.square().sum().backward()
        outs.append([out.detach(), x.grad, *[p.grad for p in model.parameters()], *model.state_dict().values()])
    assert all(torch.equal(a, b) for a, b in zip(*outs))
    assert len(seen) == 2


def test_nothing_stays_on_the_model_even_after_an_error() -> None:
    model = net()
    before = {name: set(vars(module)) for name, module in model.named_modules()}

    kept: list[Recording] = []

    def interrupted() -> None:
        with probe(model) as seen:
            model(example())
            kept.append(seen)
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        interrupted()
    for name, module in model.named_modules():
        assert set(vars(module)) == before[name]
        assert not module._forward_hooks and not module._forward_pre_hooks and not module._backward_hooks
        assert not getattr(module, "taps", None)
    ghost = weakref.ref(kept[0]["0.1"].m)
    kept.clear()
    gc.collect()
    assert ghost() is None


def test_records_follow_the_equations() -> None:
    model, x = net(), example()
    with probe(model, "0.1") as seen:
        model(x)
    layer, record = model[0][1], seen["0.1"]
    expected = reference_scan(
        model[0][0](x), torch.zeros(1), layer.threshold, layer.leak, layer.spec, membrane=True
    )  # the first forward starts from a running mean of 0
    v, a = layer.threshold.detach(), layer.leak.detach()
    torch.testing.assert_close(record.m, expected.m.detach())
    torch.testing.assert_close(record.u[-1], expected.u.detach())
    torch.testing.assert_close(record.spikes, (record.m >= v).double())
    torch.testing.assert_close(record.u, record.m - v * record.spikes)
    torch.testing.assert_close(record.m[1:], (1 - a) * record.u[:-1] + a * record.current[1:])
    torch.testing.assert_close(record.rate, record.spikes.flatten(1).mean(1))
    assert not any(getattr(record, name).requires_grad for name in RECORDS)


@pytest.mark.parametrize("name", NEURONS)
def test_every_neuron_can_be_recorded(name: str) -> None:
    layer = neuron_factory(name).at(SITE).double().eval()
    out = layer(example())
    with probe(layer) as seen:
        layer(example())
    record = seen[""]
    _, state = layer.scan(example())
    torch.testing.assert_close(record.u[-1], state.u.detach())
    if name in ("readout", "relu"):
        assert record.spikes is None and record.rate is None
        assert torch.equal(record.m.clamp_min(0) if name == "relu" else record.m, out.detach())
    else:
        # I-LIF emits up to ``levels`` spikes per step.
        assert set(record.spikes.unique().tolist()) <= {float(n) for n in range(getattr(layer, "levels", 1) + 1)}
        assert torch.equal(record.spikes > 0, out != 0)


def test_choice_of_layers_and_quantities() -> None:
    model = net()
    with probe(model, "1.*", record="rate") as seen:
        model(example())
        model(example())
    assert list(seen) == ["1.1"]
    assert seen["1.1"].m is None and seen["1.1"].spikes is None
    assert seen["1.1"].rate.shape == (T,)
    assert len(seen.all("1.1")) == 2
    with pytest.raises(ValueError, match=r"no neuron layer matches 'x'; known: 0.1, 1.1"), probe(model, "x"):
        pass
    with pytest.raises(ValueError, match="cannot record 'voltage'"), probe(model, record="voltage"):
        pass


def test_probes_nest() -> None:
    model = net()
    with probe(model, record="rate") as outer, probe(model, record="m") as inner:
        model(example())
    assert outer["0.1"].rate is not None and inner["0.1"].m is not None


def test_with_a_graph_a_loss_on_m_and_s_reaches_the_parameters() -> None:
    model = net()
    with probe(model, record=("m", "spikes"), graph=True) as seen:
        model(example())
    (seen["0.1"].m.mean() + seen["1.1"].spikes.mean()).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


def test_recomputation_by_checkpointing_is_not_recorded() -> None:
    model = net()
    x = example().requires_grad_()
    with probe(model, record="rate") as seen:
        checkpoint(model, x, use_reentrant=False).sum().backward()
    assert len(seen.all("0.1")) == 1


@pytest.mark.parametrize("name", NEURONS)
def test_a_stream_is_watched_too(name: str) -> None:
    layer, x = neuron_factory(name).at(SITE).double().eval(), example()
    with probe(layer) as whole:
        layer(x)
    with probe(layer) as seen:
        _, state = layer.scan(x[:2])
        layer.scan(x[2:], state)
    first, second = seen.all("")
    torch.testing.assert_close(torch.cat([first.m, second.m]), whole[""].m)
    torch.testing.assert_close(torch.cat([first.u, second.u]), whole[""].u)
    with pytest.raises(HealthError, match="not finite"), health(layer):
        layer.scan(x * float("nan"))


@pytest.mark.parametrize("graph", [False, True])
def test_a_memory_saving_model_gives_tensors(graph: bool) -> None:
    model = nn.Sequential(Folded(nn.Conv2d(C, C, 3, padding=1)), TDBN(C), LIF())
    saving = save_memory(nn.Sequential(*model).double())
    x = example().requires_grad_()
    with probe(saving, graph=graph) as seen:
        saving(x)
    record = seen["2"]
    assert all(type(getattr(record, name)) is Tensor for name in RECORDS)
    if graph:
        record.current.square().sum().backward()
        assert x.grad is not None and x.grad.any()


def test_a_model_that_is_called_once_per_step_has_one_joined_record() -> None:
    layer, x = LIF(init="zero"), torch.randn(5, 3, 4)
    with torch.no_grad(), probe(layer) as whole:
        layer(x)
    state = None
    with torch.no_grad(), probe(layer) as stepwise:
        for frame in x:
            _, state = layer.scan(frame[None], state)
    joined = stepwise.joined()
    assert list(joined) == list(stepwise) and len(stepwise.all("")) == 5
    for what in RECORDS:
        assert torch.equal(getattr(joined[""], what), getattr(whole[""], what)), what
    with torch.no_grad(), probe(layer, record="spikes") as seen:
        layer(x)
    assert seen.joined()[""].m is None and torch.equal(seen.joined()[""].spikes, whole[""].spikes)


def test_a_name_that_was_not_recorded_is_named_with_those_that_were() -> None:
    model = nn.Sequential(nn.Linear(4, 4), LIF())
    with probe(model) as seen:
        model(torch.randn(2, 3, 4))
    with pytest.raises(KeyError, match="'fire' was recorded, only of 1"):
        seen["fire"]


@pytest.mark.parametrize("name", ["lif", "plif", "if", "rate", "mpbn", "ilif", "mpd"])
@pytest.mark.parametrize("channelwise", [False, True])
@pytest.mark.parametrize("size", [(3, 3), (4, 8)])  # steps of whole words of bits have the scan's count
def test_the_rate_and_its_gradients_are_those_of_the_spikes(name: str, channelwise: bool, size) -> None:
    current = 3 * torch.randn(T, 2, C, *size, generator=torch.Generator().manual_seed(1))
    weights = torch.arange(1.0, T + 1)
    results = []
    for counted in (True, False):
        layer = neuron_factory(name, channelwise=channelwise).at(Site(C, size, T))
        x = current.clone().requires_grad_()
        with probe(layer, record="rate" if counted else "spikes", graph=True) as seen:
            out = layer(x)
        rate = seen[""].rate if counted else seen[""].spikes.flatten(1).mean(1)
        (out.sum() + (weights * rate).sum()).backward()  # the output has another reader, as in a network
        results.append([rate.detach(), x.grad, *(p.grad for p in layer.parameters() if p.grad is not None)])
    assert float(results[0][0].sum()) > 0
    for got, expected in zip(*results):
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["lif", "plif", "diet"])
def test_a_rate_with_nan_is_nan(name: str) -> None:
    x = torch.randn(T, 2, C, 4, 8)
    x[0, 0, 0, 0, 0] = float("nan")
    layer = neuron_factory(name).at(Site(C, (4, 8), T))
    with probe(layer, record=("rate", "spikes")) as seen:
        layer(x)
    assert bool(seen[""].rate.isnan().any())
    assert torch.equal(seen[""].rate.isnan(), seen[""].spikes.flatten(1).mean(1).isnan())


def test_a_rate_has_second_derivatives_and_keeps_the_norm_fused() -> None:
    layer = LIF(init="zero", backend="reference").double()
    x = example().requires_grad_()
    grads = []
    for what in ("rate", "spikes"):
        with probe(layer, record=what, graph=True) as seen:
            layer(x)
        rate = getattr(seen[""], what).mean()
        (first,) = torch.autograd.grad(rate.square(), layer.k, create_graph=True)
        grads.append(torch.autograd.grad(first, layer.k)[0])
    torch.testing.assert_close(*grads)
    with probe(layer, record="rate"):
        assert not any(tap.current or tap.membrane or tap.potential for tap in layer.taps.values())
