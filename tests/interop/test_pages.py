"""The code of the migration pages runs as it is written, in order."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from steadyspike.interop.adopted import Adopted

DOCS = Path(__file__).parent.parent.parent / "docs"
pytestmark = pytest.mark.peer
LIBRARIES = {"spikingjelly": "spikingjelly.activation_based", "snntorch": "snntorch", "norse": "norse.torch"}


@pytest.mark.filterwarnings("ignore")  # Lightning's advice on workers and devices
@pytest.mark.parametrize("library", LIBRARIES)
def test_python_blocks_run(library: str, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip(LIBRARIES[library], reason=f"{library} is not installed")
    torch.manual_seed(0)
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / f"from-{library}.md").read_text(), re.DOTALL)
    assert len(blocks) >= 3
    namespace: dict = {"__name__": f"from_{library}"}
    for block in blocks:
        exec(compile(block, f"from-{library}.md", "exec"), namespace)
    assert any(isinstance(module, Adopted) for module in namespace["net"].modules())
    assert "neurons of another library are now this library's" in capsys.readouterr().out
    assert not namespace["net"].conversion.left
