"""The README's model, as it is written there: trained, folded, exported, and run by onnxruntime."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch

from tests.docs.markdown import ROOT, blocks


def test_train_fold_export_run(tmp_path, monkeypatch):
    pytest.importorskip("onnxruntime")
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "readme"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch's exporter
        for block in blocks(ROOT / "README.md"):
            if block.language == "python":
                exec(compile(block.code, "README.md", "exec"), names)
    with torch.no_grad():
        expected = names["model"].eval()(names["images"]).numpy()
    assert (tmp_path / "net.onnx").exists() and np.allclose(names["logits"], expected, atol=1e-4)
