"""The folded network is the model: identical spikes in float64, for every registered network and a user's own."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

import steadyspike as ss
from steadyspike.deploy import CannotFold, FoldedNetwork, fold
from steadyspike.deploy.energy import count_operations
from steadyspike.deploy.integers import IntegerNetwork
from steadyspike.deploy.network import spikes_of_layers
from steadyspike.deploy.standalone.c_file import export_c
from steadyspike.models.model_registry import entry, names
from steadyspike.nn.time import Folded, repeat_in_time
from tests.deploy.trained import example_for, settle, trained

TINY = [name for name in names() if name.endswith("_tiny")]


def assert_equal(model: nn.Module, network: FoldedNetwork, *, silent: int = 0) -> None:
    exact, given = network.proofs
    assert exact.dtype == torch.float64 and exact.worst == 0.0 and exact.output <= 1e-12 * max(1, exact.largest)
    assert given.output <= 1e-4 * max(1, given.largest) and given.worst <= 1e-3
    assert len(exact.silent) <= silent, f"layers that never fired prove nothing: {exact.silent}"


def tied(name: str) -> dict[str, object]:
    return {"tie_stream_threshold": True} if "tie_stream_threshold" in entry(name).option_names() else {}


@pytest.mark.parametrize("name", TINY)
def test_every_registered_network_folds_exactly(name):
    model, x = trained(name, **tied(name))
    network = fold(model, x)
    assert_equal(model, network)
    assert all(node.options["emit"] == "spikes" for node in network.graph.neurons())
    assert not any(node.op == "affine" for node in network.graph), "a norm was not absorbed"


@pytest.mark.parametrize("norm", ["tebn", "tab", "bntt", "bn", "tdbn-scaled"])
def test_norms(norm):
    model, x = trained("resnet19_tiny", norm=norm)
    network = fold(model, x)
    # BNTT has no bias, so a layer may well stay silent in so small a network.
    assert_equal(model, network, silent=2 if norm == "bntt" else 0)


@pytest.mark.parametrize("neuron", ["plif", "if", "ltmd", "diet"])
def test_other_neurons(neuron):
    model, x = trained("cnn7_tiny", neuron=neuron)
    assert_equal(model, fold(model, x), silent=5)


@pytest.mark.parametrize("options", [{"gradient": "rs"}, {"reset": "hard"}, {"strict": True}, {"decay_input": False}])
def test_other_rules(options):
    from functools import partial

    model, x = trained("resnet19_tiny", neuron=partial(ss.LIF, **options))
    assert_equal(model, fold(model, x))


def test_thresholds_per_channel_go_to_their_channels():
    torch.manual_seed(0)
    model = nn.Sequential(
        Folded(nn.Conv2d(2, 6, 3, padding=1)), ss.LIF(channels=6), Folded(nn.Conv2d(6, 4, 3, groups=2)),
        Folded(nn.BatchNorm2d(4)), ss.LIF(channels=4), Folded(nn.AvgPool2d(2)), nn.Flatten(2), nn.Linear(36, 5),
    )  # fmt: skip
    x = 2 * torch.rand(4, 3, 2, 8, 8)
    settle(model, x)
    assert_equal(model, fold(model, x))


def test_streams_of_unequal_thresholds_are_refused_by_name():
    model, x = trained("sew_resnet34_tiny")
    with pytest.raises(
        CannotFold, match=r"body\.layer1\.1\.branch1\.conv_norm\.conv reads .*body\.layer1\.0\.branch2\.lif"
    ):
        fold(model, x)
    assert_equal(model, fold(model, x, mode="split"))
    assert_equal(model, fold(model, x, mode="graded"))


def test_split_reads_binary_spikes_only():
    model, x = trained("sew_resnet34_tiny")
    network = fold(model, x, mode="split")
    seen: dict[str, Tensor] = {}
    network.run(x, watch=lambda node, value: seen.__setitem__(node.name, value))
    for node in network.graph:
        if node.op == "conv" and not node.name.startswith("stem"):
            assert set(seen[node.inputs[0]].unique().tolist()) <= {0.0, 1.0}, node.name


def test_a_maximum_over_a_mixed_stream_cannot_be_split():
    model, x = trained("sew_dvs_tiny")
    for mode in ("exact", "split"):
        with pytest.raises(CannotFold, match="max_pool"):
            fold(model, x, mode=mode)
    assert_equal(model, fold(model, x, mode="graded"))


@pytest.mark.parametrize("connect", ["and", "iand"])
def test_gated_streams(connect):
    model, x = trained("sew_resnet34_tiny", connect=connect)
    assert_equal(model, fold(model, x), silent=14)


def test_the_stem_of_a_static_image_runs_once():
    model, x = trained("resnet19_tiny")
    graph = fold(model, x).graph
    (stem,) = [node for node in graph if node.name == "stem.conv_norm.conv"]
    assert not stem.timed
    assert fold(model, x)(x, timesteps=7).shape[0] == 7


def test_any_batch_size_and_state_dict_round_trip():
    model, x = trained("resnet19_tiny")
    network = fold(model, x)
    for batch in (1, 2, 5):
        y = torch.rand(batch, *x.shape[1:])
        assert torch.allclose(network(y), model(y), atol=1e-5)
    again = copy.deepcopy(network)
    again.load_state_dict(network.state_dict())
    assert torch.equal(again(x), network(x))
    assert torch.allclose(network.double()(x.double()), model.double()(x.double()), atol=1e-10)


class Net(nn.Module):
    """The README's model."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32))
        self.fire1 = ss.LIF()
        self.block = Folded(nn.Sequential(nn.Conv2d(32, 64, 3, 2, 1, bias=False), nn.BatchNorm2d(64)))
        self.fire2 = ss.LIF()
        self.head = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        spikes = self.fire1(repeat_in_time(self.stem(x), 4))
        return self.head(self.fire2(self.block(spikes)).mean((-1, -2)))


def test_a_users_own_model():
    torch.manual_seed(0)
    model, x = Net(), torch.rand(5, 1, 8, 8)
    settle(model, x)
    network = fold(model, x, batch_dim=0)
    assert_equal(model, network)
    assert network.graph.timesteps == 4


def test_an_unknown_operation_is_named_with_its_place():
    class Strange(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.sigmoid(x)

    model = nn.Sequential(nn.Linear(4, 6), ss.LIF(), nn.Sequential(nn.Linear(6, 6), Strange()), ss.LIF())
    with pytest.raises(CannotFold, match=r"'sigmoid' \(in 2\.1\)"):
        fold(model, torch.rand(3, 2, 4))


def test_a_model_that_looks_at_values_is_refused():
    class Looks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc, self.lif = nn.Linear(4, 6), ss.LIF()

        def forward(self, x: Tensor) -> Tensor:
            return self.lif(self.fc(x)) if x.sum((2,)).flatten()[0].item() > 0 else self.fc(x)

    with pytest.raises(CannotFold):
        fold(Looks(), torch.rand(3, 2, 4))


def test_a_network_of_another_library_is_sent_to_convert():
    node = pytest.importorskip("spikingjelly.activation_based.neuron").LIFNode(step_mode="m")
    for batch_dim in (0, 1):
        with pytest.raises(CannotFold, match=r"no neuron layer of this library; .* ss\.convert"):
            fold(nn.Sequential(nn.Linear(4, 6), node), torch.rand(3, 2, 4), batch_dim=batch_dim)


def test_a_neuron_with_its_own_dynamics_is_named():
    class Mine(ss.LIF):
        def run(self, x, u0, membrane=False):
            return super().run(x * 2, u0, membrane)

    model = nn.Sequential(nn.Linear(4, 6), Mine(), nn.Linear(6, 3))
    with pytest.raises(CannotFold, match=r"1: Mine has other dynamics than a plain LIF layer"):
        fold(model, torch.rand(3, 2, 4))


def test_the_model_is_left_as_it_was():
    model, x = trained("resnet19_tiny")
    model.train()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    fold(model, x)
    assert model.training and all(torch.equal(before[key], value) for key, value in model.state_dict().items())
    assert all("forward" not in module.__dict__ for module in model.modules())
    assert all(not module._forward_hooks and not module._forward_pre_hooks for module in model.modules())


def test_a_readout_at_the_end():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 32), ss.LIF(), nn.Linear(32, 3), ss.Readout(tau=2.0))
    x = 3 * torch.rand(5, 8, 4)
    settle(model, x)
    network = fold(model, x)
    assert_equal(model, network)
    assert torch.allclose(network(x), model(x), atol=1e-6)


def test_spikes_are_binary_everywhere():
    model, x = trained("resnet34_tiny")
    spikes, _ = spikes_of_layers(fold(model, x), x)
    assert len(spikes) == len([m for m in model.modules() if isinstance(m, ss.LIF)])
    assert 0.005 < sum(float(s.double().mean()) for s in spikes.values()) / len(spikes) < 0.9


def test_example_shapes_are_checked():
    model, x = trained("resnet19_tiny")
    network = fold(model, x)
    with pytest.raises(ValueError, match=r"takes \[B, 3, 16, 16\], got shape \[2, 3, 8, 8\]"):
        network(torch.rand(2, 3, 8, 8))
    assert example_for("sew_dvs_tiny").ndim == 5


def test_a_neuron_with_counts_is_refused_by_name_and_mpd_folds_as_lif():
    model, x = trained("cnn7_tiny", neuron="mpd")
    assert_equal(model, fold(model, x))
    with pytest.raises(ss.deploy.CannotFold, match="ILIF"):
        fold(*trained("cnn7_tiny", neuron="ilif"))


def test_a_model_that_is_not_folded_is_refused_in_one_line(tmp_path):
    model, x = nn.Sequential(nn.Linear(6, 8), ss.LIF()).eval(), torch.rand(4, 2, 6)
    calls = [
        lambda: ss.deploy.compile(model),
        lambda: ss.deploy.export_onnx(model, tmp_path / "a.onnx"),
        lambda: ss.deploy.export_nir(model, tmp_path / "a.nir"),
        lambda: ss.deploy.save(model, tmp_path / "a.safetensors"),
        lambda: IntegerNetwork(model),
        lambda: export_c(model, tmp_path),
        lambda: count_operations(model, [x]),
    ]
    for call in calls:
        with pytest.raises(TypeError, match=r"folded network, got Sequential; call ss\.deploy\.fold first"):
            call()
    with pytest.raises(CannotFold, match="folded already"):
        fold(fold(model, x), x)


def test_an_input_of_another_dtype_is_refused_in_one_line():
    model, x = nn.Sequential(nn.Linear(6, 8), ss.LIF()).eval(), torch.rand(4, 2, 6)
    network = fold(model, x).double()
    with pytest.raises(TypeError, match=r"computes in torch.float64, the input is torch.float32; call x.to\(torch.f"):
        network(x)
    assert network(x.double()).dtype == torch.float64
