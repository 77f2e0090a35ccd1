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
    names: dict[str, object] = {"__name__": "readme"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch's exporter
        for block in blocks(ROOT / "README.md"):
            if block.language == "python":
                exec(compile(block.code, "README.md", "exec"), names)
        network = ss.deploy.fold(names["model"], names["images"])
        ss.deploy.export_onnx(network, "net.onnx")
    session = onnxruntime.InferenceSession("net.onnx", providers=["CPUExecutionProvider"])
    (logits,) = session.run(None, {session.get_inputs()[0].name: names["images"].numpy()})
    with torch.no_grad():
        expected = names["model"].eval()(names["images"]).numpy()
    assert np.allclose(logits, expected, atol=1e-4)
