"""The tables of docs/benchmarks.md: the newest run of each kind of machine."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks import result_tables, time_to_accuracy, trained  # noqa: E402

from steadyspike.paper.work.page import NOT_RUN  # noqa: E402
from steadyspike.paper.work.recorded import Recorded  # noqa: E402
from steadyspike.results.measured import Measured  # noqa: E402


def test_a_run_replaces_that_of_its_kind_of_machine_and_no_other(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{result_tables.MARKS[0]}\n\n{result_tables.MARKS[1]}\nafter\n")
    for kind, text in (("A, avx2", "first"), ("B, avx512", "| other |"), ("A, avx2", "second\n\n| a | b |")):
        result_tables.put_between_marks(page, kind, text)
    text = page.read_text()
    assert "first" not in text and text.count("### ") == 1
    assert "### A, avx2\n\nsecond" in text, "the newest run is open"
    assert "<summary>B, avx512</summary>\n\n| other |\n\n</details>" in text, "others are closed"
    assert text.startswith("before\n") and text.endswith("\nafter\n")
    result_tables.put_between_marks(page, "B, avx512", "third")
    text = page.read_text()
    assert text.index("### B, avx512\n\nthird") < text.index("<summary>A, avx2</summary>\n\nsecond\n\n| a | b |\n\n</d")


def test_the_page_has_its_place_and_names_its_machines() -> None:
    page = ROOT / "docs/benchmarks.md"
    assert result_tables.why_not_writable(page) is None
    inside = page.read_text().split(result_tables.MARKS[0])[1].split(result_tables.MARKS[1])[0]
    assert inside.count(f"\n{result_tables.HEADING}") == 1
    assert inside.count("<!-- begin ") == inside.count("<!-- end ") > 0


def test_the_trained_network_has_its_places_and_its_line() -> None:
    assert result_tables.why_not_writable(ROOT / "docs/benchmarks.md", trained.MARKS) is None
    assert result_tables.why_not_writable(ROOT / "README.md", trained.LINE) is None
    rows = {"SteadySpike": {"train": 1.0, "forward": 0.25}, "SpikingJelly PLIF": {"train": 2.5, "forward": 1.0}}
    table = trained.speed_table(
        {"ResNet-19, width 1, B=16, T=4, trained, freed memory kept, 2 threads": {"rows": rows, "rate": 0.16}},
        "CPU, avx2",
    )
    assert "| width 1, B=16, T=4, 2 threads | 16% | 2.5 | 4.0 |" in table
    failed = {"SteadySpike": {"train": {"error": "no memory"}}}
    assert trained.speed_table({"ResNet-19": {"rows": failed}}, "CPU, avx2") == ""


def test_the_zoo_is_trained_after_the_first_seed_of_the_ablation(tmp_path: Path) -> None:
    """Every run of the list is a packaged recipe, and a folder without runs has all of them left."""
    from benchmarks.zoo import ZOO, already, order, progress

    from steadyspike.paper.work.store import Store

    runs = order()
    assert [run.recipe for run in runs[:4]] == [
        f"cifar100-narrow-{method}" for method in ("neither", "both", "mp", "trsg")
    ]
    assert [run.recipe for run in runs[4 : 4 + len(ZOO)]] == [f"zoo-{name}" for name in ZOO]
    assert len({run.key() for run in runs}) == len(runs), "no configuration is trained twice"
    assert {progress(Store(tmp_path), run) for run in runs} == {"not begun"}
    done = {run.label: text for run, text in already(runs).items()}
    assert done["cifar100-narrow-neither, seed 0"].startswith("recorded, ")
    assert done["zoo-digits-cnn7, seed 0"].startswith("in the zoo, ")


def test_a_recipe_is_trained_after_those_that_it_starts_with(tmp_path: Path) -> None:
    from benchmarks.zoo import with_earlier

    from steadyspike.paper.work.planned_run import Run
    from steadyspike.paper.work.store import Store

    store = Store(tmp_path)
    runs = with_earlier(Run("zoo-cifar100-resnet19"), store)
    assert [run.recipe for run in runs] == [
        "zoo-cifar10-resnet19-relu", "zoo-cifar100-resnet19-relu", "zoo-cifar100-resnet19"
    ]  # fmt: skip
    starts = [run.load().train.start for run in runs]
    assert starts == ["", *(str(store.folder(run).root) for run in runs[:2])]
    assert with_earlier(Run("zoo-digits-cnn7"), store) == [Run("zoo-digits-cnn7")]


def test_values_by_layer_are_those_of_the_last_epoch(tmp_path: Path) -> None:
    import numpy as np
    from benchmarks.evidence import by_layer

    from steadyspike.paper.work.planned_run import Run
    from steadyspike.paper.work.store import Result

    rows = ["epoch,layer,rate,threshold,tau", "1,a,,1,2", "1,b,,1,2", "2,a,,0.75,1.5", "2,b,,0.5,3", "2,out,,,2"]
    (tmp_path / "layers.csv").write_text("\n".join(rows) + "\n")
    arrays = {
        "layers": np.array(["a", "b"]),
        "rates": np.array([[0.5, 0.25], [0.125, 0.125]]),
        "shift": np.array([0.1, 0.2]),
    }
    assert by_layer(Result(Run("demo"), tmp_path, "finished", [50.0]), arrays) == {
        "firing rate by layer": [0.375, 0.125],
        "shift by layer": [0.1, 0.2],
        "V by layer": [0.75, 0.5],
        "tau by layer": [1.5, 3.0],
    }


def test_minutes_to_an_accuracy_count_to_the_first_epoch_that_has_it() -> None:
    minutes, accuracies = [1.0, 2.0, 3.0, 4.0], [60.0, 81.0, 79.0, 82.0]
    assert time_to_accuracy.minutes_to(minutes, accuracies, 60) == 1.0
    assert time_to_accuracy.minutes_to(minutes, accuracies, 80) == 2.0
    assert time_to_accuracy.minutes_to(minutes, accuracies, 85) is None


def test_the_table_of_minutes_has_every_training_that_was_recorded() -> None:
    def run(label: str, minutes: list[float], accuracies: list[float]) -> Measured:
        return Measured(
            recipe=time_to_accuracy.CURVES[label], seed=0, value=accuracies[-1], commit="abc", hardware="A",
            date="2026-11-19", numbers={"accuracy": accuracies, "minutes": minutes},
        )  # fmt: skip

    ours, _, theirs = time_to_accuracy.CURVES
    runs = [run(ours, [5.0, 10.0], [72.0, 86.0]), run(theirs, [30.0, 60.0], [71.0, 82.0])]
    text = time_to_accuracy.table(Recorded(runs))
    assert text.startswith(f"| test accuracy | {ours} | {theirs} |")
    assert "| 80 % | 10.0 min | 60.0 min |" in text
    assert "| 85 % | 10.0 min | not reached |" in text
    assert "| 80 % | 10.0 min |\n" in time_to_accuracy.table(Recorded(runs[:1]))
    assert time_to_accuracy.table(Recorded([])) == NOT_RUN
