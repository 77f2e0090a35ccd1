"""onnxruntime computes what the folded network computes: all steps at once, and one step at a time."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import steadyspike as ss
from steadyspike.deploy import fold
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
    wanted = network(x)
    assert np.allclose(got, wanted.numpy(), atol=1e-4 * max(1.0, float(wanted.abs().max())))
