"""The tutorials run as Python scripts, from the first line to the last, and their pictures have text alternatives."""

from __future__ import annotations

import re
import sys
import warnings
from pathlib import Path

import pytest

from tests.docs.markdown import DOCS

TUTORIALS = sorted((DOCS / "tutorials").glob("*.py"))
# What a tutorial needs beyond torch, numpy and matplotlib.
NEEDED = {"03_from_spikingjelly": "spikingjelly", "04_from_snntorch": "snntorch", "07_deploy": "onnxruntime"}


@pytest.mark.parametrize("path", TUTORIALS, ids=lambda path: path.stem)
def test_tutorial_runs(path: Path, tmp_path, monkeypatch, capsys) -> None:
    plt = pytest.importorskip("matplotlib.pyplot", reason="matplotlib is not installed")
    if path.stem in NEEDED:
        pytest.importorskip(NEEDED[path.stem], reason=f"{NEEDED[path.stem]} is not installed")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    plt.switch_backend("agg")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # other packages' advice; ours is an error
        warnings.filterwarnings("error", module="steadyspike")
        try:
            exec(compile(path.read_text(), str(path), "exec", dont_inherit=True), {"__name__": path.stem})
        finally:
            plt.close("all")
            sys.modules.pop(path.stem, None)
    printed = capsys.readouterr().out
    assert printed and "nan" not in printed.lower().split()


def test_eight_tutorials_are_listed_in_order() -> None:
    index = (DOCS / "tutorials" / "index.md").read_text()
    assert re.findall(r"^(\d\d_\w+)$", index, re.MULTILINE) == [path.stem for path in TUTORIALS]
    assert len(TUTORIALS) == 8


@pytest.mark.parametrize("path", TUTORIALS, ids=lambda path: path.stem)
def test_cells_that_draw_have_a_text_alternative(path: Path) -> None:
    for cell in re.split(r"^# %%", path.read_text(), flags=re.MULTILINE)[1:]:
        first, _, body = cell.partition("\n")
        if re.search(r"plt\.(plot|subplots|hist|figure)\(|ss\.plot\.", re.sub(r"^#.*$", "", body, flags=re.MULTILINE)):
            assert '"alt"' in first, f"{path.name}: a cell that draws has no alt text:\n{body[:200]}"


@pytest.mark.parametrize("path", TUTORIALS, ids=lambda path: path.stem)
def test_prose_does_not_stand_on_the_line_of_the_marker(path: Path) -> None:
    """There it would be the cell's title, which no page shows."""
    titles = re.findall(r"^# %% (?:\[markdown\] )?(?!\[markdown\]|mystnb=)\S.*", path.read_text(), re.MULTILINE)
    assert titles == [], f"{path.name}: begin a new line after the marker: {titles}"
