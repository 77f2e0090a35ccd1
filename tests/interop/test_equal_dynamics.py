"""The page docs/equal-dynamics.md: with equal constants, which libraries have our spikes and gradients."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))

for package in ("spikingjelly", "snntorch", "norse"):
    pytest.importorskip(package)

from benchmarks.equal_dynamics import MARKS, PAGE, layer_results, network_results  # noqa: E402

pytestmark = [pytest.mark.peer, pytest.mark.filterwarnings("ignore")]


@pytest.mark.parametrize("results", [layer_results, network_results])
def test_who_has_our_spikes_and_gradients(results):
    rows = results()
    for reset in ("soft", "hard"):
        same = [
            f"SpikingJelly LIFNode, {reset}",
            f"SpikingJelly LIFNode, {reset}, detach_reset",
            f"Norse LIFBox, {reset}",
        ]
        for label in same:
            assert rows[label].different == 0 and rows[label].gradient < 1e-5, label
    late, cut = rows["snnTorch Leaky, soft (its default)"], rows["snnTorch Leaky, hard (its default)"]
    assert late.different > 0.01, "snnTorch's reset comes one step later"
    assert cut.different == 0 and cut.cosine < 0.99, "snnTorch's reset passes no gradient"


def test_the_page_has_its_tables():
    text = PAGE.read_text().split(MARKS[0])[1].split(MARKS[1])[0]
    assert text.count("SteadySpike, soft") == 2 and "2026-" in text
