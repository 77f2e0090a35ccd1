"""The README's code runs as it is written, in order."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch

README = Path(__file__).parent.parent / "README.md"


@pytest.mark.filterwarnings("ignore")  # torch's ONNX exporter warns of its own internals
def test_python_blocks_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert len(blocks) >= 2
    namespace: dict = {"__name__": "readme"}
    for block in blocks:
        exec(compile(block, "README.md", "exec"), namespace)
    assert "FAIL" not in capsys.readouterr().out
    assert (tmp_path / "net.pt").exists()
    with torch.no_grad():
        wanted = namespace["model"].eval()(namespace["images"]).numpy()
    assert np.allclose(namespace["logits"], wanted, atol=1e-4)


def test_make_targets_exist():
    makefile = (README.parent / "Makefile").read_text()
    for target in re.findall(r"make ([a-z][a-z-]*)", README.read_text()):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
