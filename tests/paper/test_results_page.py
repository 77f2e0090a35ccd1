"""Pages are rendered from the recorded numbers; nothing on them is written by hand or read back."""

import pytest
from benchmarks import results_page

from steadyspike.paper.work.recorded import Recorded
from steadyspike.results.measured import Measured, Spread, packaged_results, read_results, written
from steadyspike.train.recipe import recipe_names


@pytest.mark.parametrize("page", sorted({where for where, _ in results_page.PARTS.values()}))
def test_pages_show_what_was_recorded(page):
    """If this fails: `python -m benchmarks.results_page`."""
    assert results_page.rendered(page) == (results_page.ROOT / page).read_text()


def test_what_was_recorded_is_of_a_recipe_or_of_a_program_of_ours():
    names = set(recipe_names())
    strange = [e.recipe for e in packaged_results() if ":" not in e.recipe and e.recipe not in names]
    assert not strange
    assert all(e.commit and e.hardware and len(e.date) == 10 for e in packaged_results())


def entry(seed, value, note="", recipe="deep-tab", **numbers):
    return Measured(recipe=recipe, seed=seed, value=value, commit="a" * 40, hardware="CPU", date="2026-01-02",
                    note=note, numbers=numbers)  # fmt: skip


def test_the_newest_run_of_a_seed_counts_and_a_mean_of_more_seeds_stands_for_runs_that_are_lost():
    old, new, other = entry(0, 10.0), entry(0, 20.0, shift=0.5), entry(1, 30.0, shift=0.7)
    recorded = Recorded([old, new, other])
    assert recorded.summary("deep-tab") == (25.0, 50.0, 2) and recorded.used == [new, other]
    assert recorded.summary("deep-tab", "shift").mean == pytest.approx(0.6)
    assert recorded.summary("deep-tab", "rate") is None and recorded.summary("deep-tebn") is None
    mean = Measured(recipe="deep-tab", seed=[0, 1, 2], value=15.0, deviation=2.0, commit="b", hardware="CPU",
                    date="2026-01-01", numbers={"rate": Spread(mean=0.25)})  # fmt: skip
    recorded = Recorded([mean, old, new, other])
    assert recorded.summary("deep-tab") == (15.0, 4.0, 3) and recorded.summary("deep-tab", "rate") == (0.25, 0.0, 3)
    third = Recorded([mean, old, new, other, entry(2, 40.0)])
    assert third.summary("deep-tab").mean == 30.0  # as many runs as the mean has seeds


def test_a_run_that_diverged_is_counted_and_not_averaged():
    recorded = Recorded([entry(0, 50.0), entry(1, 10.0, "diverged")])
    assert results_page.cell(recorded, "deep-tab") == "50.00 (1 seed); 1 diverged"
    assert results_page.cell(Recorded([]), "deep-tab") == "not run"


def test_the_line_under_a_table_names_where_its_numbers_come_from():
    recorded = Recorded([entry(0, 50.0), entry(1, 60.0)])
    recorded.summary("deep-tab")
    spread = "(± is the sample standard deviation)"
    assert recorded.stamp() == f"CPU; commit aaaaaaa; seeds 0, 1 {spread}; 2026-01-02."
    assert recorded.used == []


def test_what_is_written_is_read_again(tmp_path):
    entries = [entry(0, 1.5), entry([0, 1], 2.0, shift=Spread(mean=0.5, deviation=0.1), steps=[0.1, 0.2])]
    path = tmp_path / "x.json"
    path.write_text(written(entries))
    assert read_results(path) == entries and path.read_text().count("\n") == 4
