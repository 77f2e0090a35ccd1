"""Operations counted exactly, and the paper's arithmetic."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import steadyspike as ss
from steadyspike.deploy import energy as scanned_module
from steadyspike.deploy import fold
from steadyspike.deploy.energy import count_operations, dense_operations, energy_mj
from steadyspike.kernels.spikes.note import known_spikes
from steadyspike.nn.time import Folded
from tests.deploy.trained import settle, trained


@pytest.mark.parametrize(
    ("acs", "macs", "paper"), [(1.03, 0.14, 1.57), (1.01, 0.14, 1.57), (1.13, 0.14, 1.68), (1.12, 0.14, 1.67)]
)
def test_the_papers_rows(acs, macs, paper):
    """Rows 2 to 4 of the paper's table lie up to 0.02 mJ above what their rounded operations give."""
    assert energy_mj(macs * 1e9, acs * 1e9) == pytest.approx(paper, abs=0.03)


def test_the_first_row_is_exact():
    assert energy_mj(0.14e9, 1.03e9) == pytest.approx(1.571, abs=5e-4)


def test_dense_operations_of_resnet19():
    """Golden numbers: the stem's MACs and the spike-driven operations per step of the released form, 100 classes."""
    torch.manual_seed(0)
    model = ss.models.create("resnet19", num_classes=100).eval()
    graph = fold(model, torch.rand(1, 3, 32, 32), check=False).graph
    counts = {n.name: dense_operations(n, graph[n.inputs[0]].shape) for n in graph if n.op in ("conv", "linear")}
    assert counts.pop("stem.conv_norm.conv") == 1_769_472
    assert sum(counts.values()) == 2_214_643_712


def literal_count(spikes: torch.Tensor, conv: nn.Conv2d) -> int:
    """Every spike, one by one: the outputs it reaches, by asking where a lone spike makes the output non-zero."""
    total = 0
    ones = torch.ones_like(conv.weight)
    for index in spikes.nonzero().tolist():
        lone = torch.zeros_like(spikes)
        lone[tuple(index)] = 1
        out = nn.functional.conv2d(lone, ones, None, conv.stride, conv.padding, conv.dilation, conv.groups)
        total += int((out != 0).sum())
    return total


@pytest.mark.parametrize(
    "options", [{}, {"stride": 2, "padding": 1}, {"padding": 2, "dilation": 2}, {"groups": 2, "padding": 1}]
)
def test_synaptic_operations_are_exact_at_borders(options):
    torch.manual_seed(0)
    conv = nn.Conv2d(4, 6, 3, **options)
    model = nn.Sequential(Folded(nn.Conv2d(2, 4, 1)), ss.LIF(), Folded(conv), ss.LIF())
    nn.init.uniform_(model[0].layer.weight, 0, 1)
    x = 3 * torch.rand(2, 1, 2, 6, 6)
    settle(model, x)
    report = count_operations(fold(model, x), [x])
    with torch.no_grad():
        spikes = (model[1](model[0](x)) > 0).float().flatten(0, 1)
    (layer,) = [layer for layer in report.layers if layer.name == "2.layer"]
    assert 0 < spikes.mean() < 1 and layer.acs == literal_count(spikes, conv)


def test_agreement_with_spikingjelly():
    counter = pytest.importorskip("spikingjelly.activation_based.op_counter", exc_type=ImportError)
    torch.manual_seed(0)
    model = nn.Sequential(
        Folded(nn.Conv2d(2, 8, 3, padding=1)), ss.LIF(gradient="rs"), Folded(nn.Conv2d(8, 8, 3, padding=1, stride=2)),
        ss.LIF(gradient="rs"), nn.Flatten(2), nn.Linear(128, 5),
    )  # fmt: skip
    x = 3 * torch.rand(3, 2, 2, 8, 8)
    settle(model, x)
    network = fold(model, x)
    report = count_operations(network, [x])
    synops = counter.SynOpCounter()
    with counter.DispatchCounterMode([synops], strict=False):
        model(x)
    assert report.total("acs") * report.samples == synops.get_total()


def test_the_stem_counts_once_unless_asked():
    model, x = trained("resnet19_tiny")
    network = fold(model, x)
    once, every = (count_operations(network, [x], stem_every_step=flag) for flag in (False, True))
    assert every.total("macs") == 4 * once.total("macs") > 0
    assert once.total("acs") == every.total("acs")
    assert "total per sample" in str(once)


def test_identity_edges_cost_one_accumulate_per_spike():
    model, x = trained("resnet19_tiny", layers=(2, 1, 1))
    report = count_operations(fold(model, x), [x])
    edges = [layer for layer in report.layers if " <- " in layer.name]
    sources = {edge.name.split(" <- ")[1]: edge for edge in edges}
    assert set(sources) == {"stem.lif", "body.layer1.0.lif2"}
    rates = report.firing["body.layer1.0.lif2"]
    neurons = 8 * 16 * 16
    assert sources["body.layer1.0.lif2"].acs == pytest.approx(sum(rates) * neurons * report.samples)


def test_averages_are_sums_of_spikes_or_macs():
    model, x = trained("cnn7_tiny")
    network = fold(model, x)
    papers, strict = (count_operations(network, [x], pool_as_synapse=flag) for flag in (True, False))
    assert strict.total("macs") > papers.total("macs") and strict.total("acs") < papers.total("acs")


def test_no_data_is_an_error():
    model, x = trained("cnn7_tiny")
    with pytest.raises(ValueError, match="no data"):
        count_operations(fold(model, x), [])
    with pytest.raises(ValueError, match="45nm-fp32"):
        energy_mj(1, 1, "7nm")


class _Sums(nn.Module):
    """The pooling with sums in place of averages, written out."""

    def __init__(self, pool: nn.Module) -> None:
        super().__init__()
        self.pool = pool

    def forward(self, x: Tensor) -> Tensor:
        windows = torch.eye(x.shape[-1] ** 2, dtype=x.dtype).view(-1, 1, *x.shape[-2:])
        reads = (self.pool(windows) != 0).to(x.dtype).flatten(1)  # [pixels, outputs]: who reads which pixel
        return x.flatten(2) @ reads


@pytest.mark.parametrize(
    "pool",
    [
        nn.AvgPool2d(2), nn.AvgPool2d(3, 2, 1), nn.AvgPool2d(3, 2, 1, count_include_pad=False),
        nn.AvgPool2d(3, ceil_mode=True), nn.AdaptiveAvgPool2d(3), nn.AdaptiveAvgPool2d(1),
    ],
)  # fmt: skip
def test_accumulates_behind_an_average_are_the_spikes_it_joins(pool):
    torch.manual_seed(0)
    x = 2 * torch.rand(4, 3, 2, 8, 8)
    features = pool(torch.zeros(1, 4, 8, 8)).numel()
    layers = Folded(nn.Conv2d(2, 4, 3, padding=1)), ss.LIF(0.3), Folded(pool), nn.Flatten(2), nn.Linear(features, 5)
    model = nn.Sequential(*layers)
    settle(model, x)
    report = count_operations(fold(model, x), [x])
    spikes = (model[1](model[0](x)) > 0).float()
    assert spikes.sum() > 20
    (head,) = [layer for layer in report.layers if layer.name == "4"]
    assert head.acs == pytest.approx(5 * float(_Sums(pool)(spikes.flatten(0, 1)).sum()), rel=1e-5)


def test_a_mean_over_time_joins_all_steps():
    class Early(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.fire, self.o = nn.Linear(6, 8), ss.LIF(0.3), nn.Linear(8, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.o(self.fire(self.a(x)).mean(0))

    torch.manual_seed(0)
    model, x = Early(), 3 * torch.rand(4, 5, 6)
    settle(model, x)
    (head,) = [layer for layer in count_operations(fold(model, x), [x]).layers if layer.name == "o"]
    spikes = float((model.fire(model.a(x)) > 0).sum())
    assert spikes > 0 and head.acs == pytest.approx(3 * spikes)


def test_rates_are_means_over_samples_not_over_batches():
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(6, 8), ss.LIF(0.3), nn.Linear(8, 3)), 3 * torch.rand(4, 5, 6)
    settle(model, x)
    network = fold(model, x)
    one, two = count_operations(network, [x]), count_operations(network, [x[:, :4], x[:, 4:]])
    assert max(one.firing["1"]) > 0 and two.firing["1"] == pytest.approx(one.firing["1"])
    rates = [next(layer.rates for layer in report.layers if layer.name == "2") for report in (one, two)]
    assert rates[1] == pytest.approx(rates[0])
    assert count_operations(network, [x, x[:2]]).timesteps == 4, "recordings of another length"


def test_products_of_spikes_are_counted():
    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.o = nn.Linear(6, 8), nn.Linear(6, 8), nn.Linear(16, 3)
            self.q, self.k = ss.LIF(0.3), ss.LIF(0.3)

        def forward(self, x: Tensor) -> Tensor:
            q, k = self.q(self.a(x)).unflatten(-1, (4, 2)), self.k(self.b(x)).unflatten(-1, (4, 2))
            return self.o((q @ k.transpose(-1, -2)).flatten(2))

    torch.manual_seed(0)
    model, x = Attention(), 3 * torch.rand(4, 5, 6)
    settle(model, x)
    (product,) = [layer for layer in count_operations(fold(model, x), [x]).layers if "matmul" in layer.name]
    spikes = float((model.q(model.a(x)) > 0).sum())
    assert spikes > 0 and product.acs == 4 * spikes and product.macs == 0 and product.dense == 20 * 4 * 2 * 4


def test_spikes_are_counted_from_the_bits_of_the_scan(monkeypatch):
    torch.manual_seed(0)
    body = [ss.LIF(), Folded(nn.Conv2d(8, 8, 3, padding=1)), ss.LIF(), nn.Flatten(2), nn.Linear(8 * 64, 4)]
    model = nn.Sequential(Folded(nn.Conv2d(2, 8, 1)), *body)
    x = 3 * torch.rand(3, 4, 2, 8, 8)
    settle(model, x)
    network = fold(model, x)
    actual = []

    def noted(value: Tensor):
        actual.append(known_spikes(value))
        return actual[-1]

    monkeypatch.setattr(scanned_module, "known_spikes", noted)
    bits = count_operations(network, [x, x[:, :2]])
    assert sum(spikes is not None for spikes in actual) >= 4
    monkeypatch.setattr(scanned_module, "known_spikes", lambda value: None)
    values = count_operations(network, [x, x[:, :2]])
    assert values.total("acs") > 0 and bits.total("acs") == values.total("acs")
    assert bits.firing.keys() == values.firing.keys()
    for name, rates in bits.firing.items():
        assert rates == pytest.approx(values.firing[name], rel=1e-12)
    assert bits.total("estimate") == pytest.approx(values.total("estimate"), rel=1e-12)


@pytest.mark.parametrize("options", [{}, {"reset": "hard"}, {"strict": True}, {"channels": 8}, {"gradient": "as"}])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_scan_gives_the_spikes_of_the_folded_network(options, dtype):
    torch.manual_seed(0)
    model = nn.Sequential(Folded(nn.Conv2d(2, 8, 1)), ss.LIF(**options), Folded(nn.Conv2d(8, 3, 1)), ss.LIF())
    x = 3 * torch.rand(3, 4, 2, 8, 8)
    settle(model, x)
    network, x = fold(model, x).to(dtype), x.to(dtype)
    assert torch.equal(network.run(x), network.run(x, neuron=scanned_module.scanned))
