"""Every Python block of every page runs as it is written, in order, and prints what the page shows."""

from __future__ import annotations

import doctest
import re
import shutil
import warnings
from pathlib import Path

import pytest
import torch

from steadyspike.models import model_registry
from steadyspike.train.recipe import kinds
from tests.docs.markdown import blocks, name, pages

PAGES = {name(path): path for path in pages() if any(block.language == "python" for block in blocks(path))}
PEERS = {
    "spikingjelly": "spikingjelly.activation_based",
    "snntorch": "snntorch",
    "norse": "norse.torch",
    "neurobench": "neurobench",
    "lightning": "lightning",
}


@pytest.fixture(scope="module")
def demo_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short run of the recipe demo, for pages that load ``runs/demo/001``."""
    from typer.testing import CliRunner

    from steadyspike.cli import app

    folder = tmp_path_factory.mktemp("runs") / "001"
    short = ["--set", "schedule.epochs=1", "--set", "data.train_samples=64", "--out", str(folder)]
    result = CliRunner().invoke(app, ["train", "demo", *short])
    assert result.exit_code == 0, result.output
    return folder


@pytest.mark.parametrize("page", PAGES)
def test_python_blocks(page, tmp_path, monkeypatch, capsys, request):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(model_registry, "_ENTRIES", dict(model_registry._entries()))  # pages register networks
    monkeypatch.setattr(kinds, "KINDS", dict(kinds.KINDS))  # and kinds of runs
    python = [block for block in blocks(PAGES[page]) if block.language == "python"]
    if any("runs/demo/001" in block.code for block in python):
        shutil.copytree(request.getfixturevalue("demo_run"), tmp_path / "runs" / "demo" / "001")
    torch.manual_seed(0)
    namespace: dict[str, object] = {"__name__": "page"}
    with drawing_nowhere(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # advice of Lightning, torch and matplotlib; ours is an error
        warnings.filterwarnings("error", module="steadyspike")
        for block in python:
            for library, module in PEERS.items():
                if re.search(rf"^(from|import) .*\b{library}\b", block.code, re.MULTILINE):
                    pytest.importorskip(module, reason=f"{library} is not installed; the blocks above it ran")
            # Blank lines in front: a traceback then names the line of the page.
            exec(compile("\n" * (block.line - 1) + block.code, page, "exec", dont_inherit=True), namespace)
            printed = capsys.readouterr().out
            if block.output is not None:
                options = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
                same = doctest.OutputChecker().check_output(block.output, printed, options)
                assert same, (
                    f"{page}, line {block.line}: the page shows\n{block.output}\nand the code prints\n{printed}"
                )


class drawing_nowhere:
    """Lets figures be drawn without a screen, and closes them at the end."""

    def __enter__(self) -> None:
        try:
            import matplotlib.pyplot as plt
        except ImportError:
            return
        plt.switch_backend("agg")

    def __exit__(self, *error: object) -> None:
        import sys

        if plt := sys.modules.get("matplotlib.pyplot"):
            plt.close("all")


def test_pages_have_blocks_and_outputs():
    assert len(PAGES) > 15
    assert sum(block.output is not None for path in PAGES.values() for block in blocks(path)) > 10
