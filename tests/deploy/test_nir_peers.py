"""Our NIR exports in nirtorch, SpikingJelly, snnTorch and Norse: the table of docs/deploy.md is what they do."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

for package in ("nir", "nirtorch", "spikingjelly", "snntorch", "norse"):
    pytest.importorskip(package)

from benchmarks.nir_peers import NETWORKS, PAGE, TOOLS, outcome, rendered, table  # noqa: E402

pytestmark = [pytest.mark.peer, pytest.mark.filterwarnings("ignore")]


def test_the_page_shows_what_every_tool_does():
    page = PAGE.read_text()
    assert page == rendered(page, table()), "run: python -m benchmarks.nir_peers --write"


@pytest.mark.parametrize("tool", TOOLS)
def test_a_hard_reset_runs_exactly_everywhere(tool):
    network, x = NETWORKS["hard reset"]()
    assert 0.02 < float(network(x).mean()) < 0.9
    assert outcome(tool, network, x, "lif") == "exact"


def test_nirtorch_runs_both_exact_forms():
    """NIR's own tool, with modules for NIR's nodes: a soft reset as a cycle, an initial potential as a shift."""
    assert outcome("nirtorch", *NETWORKS["soft reset"](), "faithful") == "exact"
    assert outcome("nirtorch", *NETWORKS["hard reset, U[0] = 0.29"](), "shift") == "exact"
