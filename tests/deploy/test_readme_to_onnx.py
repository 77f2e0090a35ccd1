"""The README's model, as it is written there, taken further: folded, exported, and run by onnxruntime."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch

import steadyspike as ss
from tests.docs.markdown import ROOT, blocks


def test_train_fold_export_run(tmp_path, monkeypatch):
    onnxruntime = pytest.importorskip("onnxruntime")
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    names: dict[str, object] = {"__name__": "readme"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch's exporter
        for block in blocks(ROOT / "README.md"):
            if block.language == "python":
                exec(compile(block.code, "README.md", "exec"), names)
        model, images = names["model"], names["images"]
        _settle(model, images)
        network = ss.deploy.fold(model.eval(), images)
        ss.deploy.export_onnx(network, "net.onnx")
    assert not any(proof.silent for proof in network.proofs)
    session = onnxruntime.InferenceSession("net.onnx", providers=["CPUExecutionProvider"])
    (logits,) = session.run(None, {session.get_inputs()[0].name: images.numpy()})
    with torch.no_grad():
        expected = model(images).numpy()
    assert expected.std(axis=(0, 1)).max() > 1e-2, "outputs must differ by far more than the tolerance"
    assert np.allclose(logits, expected, atol=1e-4)


@torch.no_grad()
def _settle(model: torch.nn.Module, images: torch.Tensor) -> None:
    """Statistics of norms and MP-Init as after a long training; after one step, evaluation is silent."""
    for module in model.modules():
        if isinstance(getattr(module, "momentum", None), float):
            module.momentum = 1.0
    for _ in range(3):
        model(images)
