"""onnxruntime computes what the folded network computes: all steps at once, and one step at a time."""

from __future__ import annotations

import math
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn

import steadyspike as ss
from steadyspike.deploy import CannotFold, FoldedNetwork, fold, save
from steadyspike.deploy.graph import Graph, Node
from steadyspike.deploy.integers import IntegerNetwork
from steadyspike.deploy.onnx_facts import read_facts, usage
from steadyspike.deploy.to_onnx import OneStep, export_onnx
from steadyspike.nn.time import Folded
from tests.deploy.trained import settle, trained

ort = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")


@pytest.fixture(scope="module")
def small():
    torch.manual_seed(0)
    second = nn.Sequential(nn.Conv2d(6, 6, 3, 2, 1), nn.BatchNorm2d(6))
    model = nn.Sequential(
        Folded(nn.Conv2d(2, 6, 3, padding=1)), ss.LIF(), Folded(second), ss.LIF(), nn.Flatten(2), nn.Linear(96, 5)
    )
    x = 3 * torch.rand(3, 4, 2, 8, 8)
    settle(model, x)
    return fold(model, x), x


def run(path, **inputs):
    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return session.run(None, {name: np.ascontiguousarray(t.numpy()) for name, t in inputs.items()})


def test_all_steps_in_one_graph(small, tmp_path):
    network, x = small
    path = export_onnx(network, tmp_path / "net.onnx")
    for batch in (1, 4):
        (got,) = run(path, input=x[:, :batch])
        assert np.allclose(got, network(x[:, :batch]).numpy(), atol=1e-5)


def test_one_step_with_explicit_state(small, tmp_path):
    network, x = small
    path = export_onnx(network, tmp_path / "step.onnx", streaming=True)
    state, outs = OneStep(network).start(4), []
    for frame in x:
        out, *state = run(path, frame=frame, **{f"u_{i}": torch.as_tensor(u) for i, u in enumerate(state)})
        outs.append(torch.as_tensor(out))
    assert torch.allclose(torch.stack(outs), network(x), atol=1e-5)


def test_the_first_step_needs_the_frame_only(small, tmp_path):
    network, x = small
    path = export_onnx(network, tmp_path / "step.onnx", streaming=True)
    assert any(float(u.abs().max()) > 0.01 for u in OneStep(network).start(1)), "zeros would do as well"
    for batch in (1, 4):
        state, outs = {}, []
        for frame in x[:, :batch]:
            out, *after = run(path, frame=frame, **state)
            state = {f"u_{i}": torch.as_tensor(u) for i, u in enumerate(after)}
            outs.append(torch.as_tensor(out))
        assert torch.allclose(torch.stack(outs), network(x[:, :batch]), atol=1e-5)


@pytest.mark.parametrize("streaming", [False, True])
def test_the_printed_program_runs_without_this_library(small, tmp_path, streaming):
    network, _ = small
    extra = {"classes": list("abcde"), "mean": [0.5, 0.5], "std": [0.2, 0.2]}
    path = export_onnx(network, tmp_path / "net.onnx", streaming=streaming, extra=extra)
    facts = read_facts(path)
    assert facts["steps"] == 3 and facts["classes"] == extra["classes"] and facts["mean"] == [0.5, 0.5]
    program = tmp_path / "use.py"
    program.write_text(usage(str(path), facts) + "import sys; assert not {'torch', 'steadyspike'} & {*sys.modules}\n")
    done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, env={}, check=False)
    chosen = network(torch.zeros(3, 2, 2, 8, 8)).mean(0).argmax(-1)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str([extra["classes"][i] for i in chosen])


def test_files_have_the_mode_that_the_umask_gives(small, tmp_path):
    network, _ = small
    before = os.umask(0o027)
    try:
        paths = [
            export_onnx(network, tmp_path / "net.onnx"),
            save(network, tmp_path / "net.safetensors"),
            IntegerNetwork(network).save(tmp_path / "int8.safetensors"),
        ]
    finally:
        os.umask(before)
    assert {oct(path.stat().st_mode & 0o777) for path in paths} == {"0o640"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["int8.safetensors", "net.onnx", "net.safetensors"]


def with_all_spikes(network):
    """The network with the spikes of all its neuron layers, side by side, as its output."""
    graph = Graph(network.graph.timesteps)
    graph.nodes.update(network.graph.nodes)
    flat = []
    for node in network.graph.neurons():
        if node.options["emit"] == "spikes":
            flat.append(graph.add(Node(f"{node.name}:flat", "reshape", (node.name,), (math.prod(node.shape),), True)))
    size = sum(graph[name].shape[0] for name in flat)
    graph.output = graph.add(Node("spikes", "concat", tuple(flat), (size,), True, {"axis": 0}))
    return FoldedNetwork(graph.pruned())


def assert_spikes_agree(network, x, path):
    every = with_all_spikes(network)
    (got,) = run(export_onnx(every, path), input=x)
    expected = every(x).numpy()
    assert set(np.unique(expected)) == {0, 1} and got.shape == expected.shape
    assert (got == expected).mean() >= 0.9999


def test_onnxruntime_gives_the_same_spikes(small, tmp_path):
    network, x = small
    assert_spikes_agree(network, x, tmp_path / "spikes.onnx")


def rich(lead):
    """Inputs of a shape, strong enough that neurons fire."""
    torch.manual_seed(1)
    return 3 * torch.rand(lead)


class Image(nn.Module):
    """Repeats an odd-sized image itself."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.fire, self.head = nn.Conv2d(1, 3, 3), ss.LIF(), nn.Linear(3, 2)

    def forward(self, x):
        return self.head(self.fire(ss.nn.repeat_in_time(self.stem(x), 3)).mean((-1, -2)))


def odd_shapes():
    pooled = (Folded(nn.AvgPool2d(2)), nn.Flatten(2), nn.Linear(27, 2))
    return {
        "one neuron": (nn.Sequential(nn.Linear(1, 1), ss.LIF(), nn.Linear(1, 1)), (2, 2, 1)),
        "one pixel": (nn.Sequential(Folded(nn.Conv2d(2, 3, 1)), ss.LIF(), nn.Flatten(2)), (2, 2, 2, 1, 1)),
        "odd sides": (nn.Sequential(Folded(nn.Conv2d(2, 3, 3, 2)), ss.LIF(), *pooled), (2, 2, 2, 15, 13)),
        "signals": (nn.Sequential(Folded(nn.Conv1d(2, 3, 3)), ss.LIF(), nn.Flatten(2), nn.Linear(15, 2)), (2, 2, 2, 7)),
        "one step": (nn.Sequential(nn.Linear(3, 7), ss.LIF(reset="hard"), nn.Linear(7, 2)), (1, 2, 3)),
        "ends in spikes": (nn.Sequential(nn.Linear(3, 7), ss.LIF()), (3, 2, 3)),
        "an image": (Image(), (2, 1, 7, 5)),
    }  # fmt: skip


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n == "odd sides" else pytest.mark.slow) for n in odd_shapes()]
)
def test_one_step_of_odd_shapes(name, tmp_path):
    model, shape = odd_shapes()[name]
    x, image = rich(shape), name == "an image"
    settle(model, x)
    network = fold(model, x, batch_dim=0 if image else 1)
    path = export_onnx(network, tmp_path / "step.onnx", streaming=True)
    for batch in (1, 5):
        some = x[:1].expand(batch, *shape[1:]) if image else x[:, :1].expand(-1, batch, *shape[2:])
        state, outs = OneStep(network).start(batch), []
        for frame in [some] * 3 if image else some:
            out, *state = run(path, frame=frame, **{f"u_{i}": torch.as_tensor(u) for i, u in enumerate(state)})
            outs.append(torch.as_tensor(out))
        assert torch.allclose(torch.stack(outs), network(some), atol=1e-5)


def test_a_network_without_neurons_has_no_state_to_stream(tmp_path):
    network = fold(nn.Sequential(nn.Linear(3, 2)), torch.rand(2, 2, 3))
    with pytest.raises(CannotFold, match="without neurons"):
        export_onnx(network, tmp_path / "no.onnx", streaming=True)


def test_torch_export_and_compile(small):
    network, x = small
    exported = torch.export.export(network, (x,)).module()
    assert torch.equal(exported(x), network(x))
    compiled = torch.compile(network, backend="aot_eager", fullgraph=True)
    assert torch.allclose(compiled(x), network(x), atol=1e-6)


def test_networks_with_constants_per_step_have_no_single_step(tmp_path):
    model, x = trained("cnn7_tiny", norm="tebn")
    with pytest.raises(ValueError, match="per time step"):
        export_onnx(fold(model, x), tmp_path / "no.onnx", streaming=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["resnet19_tiny", "sew_resnet34_tiny", "ms_resnet_tiny", "vggsnn_tiny", "resnet34_tiny", "cnn7_tiny"]
)
def test_every_network(name, tmp_path):
    model, x = trained(name, **({"tie_stream_threshold": True} if name.startswith("sew") else {}))
    network = fold(model, x)
    (got,) = run(export_onnx(network, tmp_path / "net.onnx"), input=x)
    expected = network(x)
    assert np.allclose(got, expected.numpy(), atol=1e-4 * max(1.0, float(expected.abs().max())))
    assert_spikes_agree(network, x, tmp_path / "spikes.onnx")
