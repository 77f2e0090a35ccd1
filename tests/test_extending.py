"""The code of docs/extending.md runs as it is written, in order."""

import re
from pathlib import Path

import torch

PAGE = Path(__file__).parent.parent / "docs" / "extending.md"


def test_python_blocks_run(capsys):
    torch.manual_seed(0)
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(blocks) >= 8
    namespace: dict = {"__name__": "extending"}
    for block in blocks:
        exec(compile(block, "extending.md", "exec"), namespace)
    assert namespace["report"].ok, str(namespace["report"])
    exempt = {id(p) for p in namespace["optimizer"].param_groups[1]["params"]}
    assert exempt == {id(namespace["net"].body[2].p)}
    assert namespace["outcome"].parts.keys() == {"task", "small"}
    assert capsys.readouterr().out
