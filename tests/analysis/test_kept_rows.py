"""Rows of docs/results.md that a folder of runs does not have stay on the page when it is written again."""

import statistics

import pytest
from benchmarks import evidence
from benchmarks.kept_rows import Key, Refused, keep, keep_all, read, runs_in, stamp_of_both
from benchmarks.proof_claims import between

from steadyspike.analysis.reproduce import page
from steadyspike.analysis.reproduce.over_seeds import Summary, judged
from steadyspike.analysis.reproduce.scales import Scale
from steadyspike.analysis.reproduce.store import Store
from steadyspike.analysis.reproduce.work import Work

HEAD = ["configuration", page.MEASURED, "after step 1 (%)", "shift"]
CLAIMS = [("both above neither", "both", "neither"), ("both above TrSG", "both", "TrSG")]
NOW = "AMD EPYC, 2 cores, one thread a run; torch 2.13; commit 1234567; seeds from 0 on; 2026-11-18."
BEFORE = "AMD EPYC, 2 cores, one thread a run; torch 2.13; commit 0000000, 9999999; seeds from 0 on; 2026-11-17."


def table(neither: str, trsg: str, both: str, mark: str) -> page.Table:
    rows = [["neither", neither, "1", mark], ["TrSG", trsg, "2", mark], ["both", both, "3", mark]]
    verdicts = [f"{text}: {mark}" for text, _, _ in CLAIMS]
    return page.Table("7 layers", list(HEAD), rows, verdicts, list(CLAIMS))


def written(found: page.Table) -> str:
    return f"### Depth\n\n{found.markdown()}\n\n### Other\n\n{found.markdown()}\n\n{BEFORE}\n"


def test_what_is_written_is_read_again():
    values = [39.43, 38.2, 40.1]
    kept = Summary.read(page.spread(values))
    assert kept.mean == pytest.approx(statistics.mean(values), abs=0.005) and kept.seeds == 3
    assert kept.variance**0.5 == pytest.approx(statistics.stdev(values), abs=0.005)
    assert Summary.read("39.43 (1 seed); 2 diverged") == (39.43, 0.0, 1)
    assert Summary.read("not run") is None and Summary.read("2 diverged") is None
    assert judged(Summary(47.0, 0.25, 3), Summary(39.0, 1.0, 3)) == "held (+8.00)"
    assert "within two" in judged(Summary(40.0, 4.0, 2), Summary(39.0, 1.0, 3))


@pytest.mark.parametrize(
    ("cell", "count"),
    [("not run", 0), ("39.43 ± 0.99 (3 seeds)", 3), ("39.43 (1 seed); 2 diverged", 3), ("1 diverged, stopped", 1)],
)
def test_runs_that_did_not_finish_count(cell, count):
    assert runs_in(cell) == count


def test_a_row_with_fewer_runs_keeps_its_text_and_claims_are_judged_again():
    old = table("39.43 ± 0.99 (3 seeds)", "not run", "47.63 ± 0.52 (3 seeds)", "old")
    new = table("50.00 (1 seed)", "44.00 ± 1.00 (3 seeds)", "not run", "new")
    kept = keep(new, "Depth", read(written(old)))
    assert [key.label for key in kept] == ["neither", "both"] and {key.section for key in kept} == {"Depth"}
    assert new.rows == [old.rows[0], ["TrSG", "44.00 ± 1.00 (3 seeds)", "2", "new"], old.rows[2]]
    # Two kept rows keep the verdict that was made from all digits; a kept and a new row get a new one.
    assert new.claims == ["both above neither: old", "both above TrSG: held (+3.63)"]


def test_as_many_or_more_runs_replace_a_row():
    old = table("39.43 (1 seed)", "41.00 ± 1.00 (2 seeds)", "not run", "old")
    new = table("50.00 ± 1.00 (2 seeds)", "44.00 ± 1.00 (2 seeds)", "47.00 (1 seed)", "new")
    rows, claims = [list(row) for row in new.rows], list(new.claims)
    assert keep(new, "Depth", read(written(old))) == []
    assert (new.rows, new.claims) == (rows, claims)


def test_a_row_is_known_by_section_and_table_too():
    old = table("39.43 (1 seed)", "not run", "not run", "old")
    new = table("not run", "not run", "not run", "new")
    assert keep(new, "Length", read(written(old))) == []
    new.title = "13 layers"
    assert keep(new, "Depth", read(written(old))) == []


def test_a_row_that_no_table_has_is_not_lost_in_silence():
    old = read(written(table("39.43 (1 seed)", "not run", "not run", "old")))
    new = table("not run", "not run", "not run", "new")
    with pytest.raises(Refused, match="Other / 7 layers / neither"):
        keep_all([page.Page("Depth", [new])], old)


def test_a_kept_row_has_no_number_of_the_folder_and_the_paper_s_value_of_today():
    old = table("39.43 ± 0.99 (3 seeds)", "not run", "not run", "old")
    new = table("50.00 (1 seed)", "not run", "not run", "new")
    for found, value in ((old, "75.00"), (new, "75.55")):
        found.head.insert(1, page.PAPER)
        for row in found.rows:
            row.insert(1, value)
    new.head.append("later")
    for row in new.rows:
        row.append("0.5")
    keep(new, "Depth", read(written(old)))
    assert new.rows[0] == ["neither", "75.55", "39.43 ± 0.99 (3 seeds)", "1", "old", "-"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text.replace("| both |", "| TrSG |"), "two rows Depth / 7 layers / TrSG"),
        (lambda text: text.replace("\n### Other\n", ""), "two tables Depth / 7 layers"),
        (
            lambda text: text.replace("| 2 | old |", "| old |"),
            "the row Depth / 7 layers / TrSG has 3 cells.* 4 columns",
        ),
        (lambda text: text.replace("| 2 | old |", "| 2 | old | 7 |"), "TrSG has 5 cells"),
    ],
)
def test_a_page_that_can_be_read_in_two_ways_is_refused(change, message):
    text = written(table("39.43 (1 seed)", "not run", "not run", "old"))
    assert len(read(text).rows) == 6
    with pytest.raises(Refused, match=message):
        read(change(text))


def test_the_last_line_names_all_commits_and_what_was_kept():
    rows = [Key("a", "b", "c"), Key("a", "b", "d")]
    assert stamp_of_both(NOW, BEFORE, []) == NOW
    line = stamp_of_both(NOW, BEFORE, rows)
    assert "commit 0000000, 1234567, 9999999; seeds" in line and "2 rows were kept from before" in line
    assert "0000000, 1234567, 9999999" in stamp_of_both(NOW, line, rows[:1])  # and a third time
    with pytest.raises(Refused, match="Intel"):
        stamp_of_both(NOW.replace("AMD EPYC", "Intel"), BEFORE, rows)


def test_a_folder_without_runs_leaves_the_page_as_it_is(tmp_path):
    before = between(evidence.MARKS).strip()
    where = read(before).stamp.partition(". ")[0].rstrip(".") + "."
    made = evidence.text(Work(Scale("deep"), evidence.SEEDS, Store(tmp_path)), before, where)
    assert made.partition("; commit ")[0] == before.partition("; commit ")[0]
