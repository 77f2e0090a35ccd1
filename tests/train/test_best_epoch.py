"""Which epoch a run is judged by: every evaluated one counts, the last is always evaluated, and ties are decided."""

import io
import math
import os

import pytest
from rich.console import Console

from steadyspike.train.files.tables import read_table
from steadyspike.train.run.display import Display
from steadyspike.train.state.session import Best
from steadyspike.train.watch.scores import Scores
from tests.train.conftest import trained


@pytest.mark.parametrize(("every", "epochs", "evaluated"), [(2, 3, {"2", "3"}), (5, 2, {"2"}), (2, 4, {"2", "4"})])
def test_the_last_epoch_is_evaluated(tmp_path, every, epochs, evaluated):
    folder, result = trained(tmp_path, [f"train.eval_every={every}", f"schedule.epochs={epochs}"])
    rows = read_table(folder.root / "metrics.csv")
    scored = {row["epoch"]: row for row in rows if row["validation_accuracy_2"]}
    assert len(rows) == epochs and scored.keys() == evaluated
    best = max(
        scored.values(),
        key=lambda row: (float(row["validation_accuracy_2"]), -float(row["validation_loss"]), int(row["epoch"])),
    )
    assert str(result["best"]["epoch"]) == best["epoch"]


@pytest.mark.parametrize(
    ("epochs", "chosen"),
    [
        ([(50.0, 1.0), (60.0, 2.0), (55.0, 0.5)], 2),  # accuracy
        ([(50.0, 1.0), (50.0, 0.9), (50.0, 1.1)], 2),  # then the lower loss
        ([(50.0, 1.0), (50.0, 1.0), (40.0, 0.1)], 2),  # then the later epoch
        ([(50.0, math.nan), (50.0, 3.0), (50.0, math.nan)], 2),  # a loss that is not finite is the worst
        ([(0.0, math.inf)], 1),
    ],
)
def test_ties_go_to_the_lower_loss_then_to_the_later_epoch(epochs, chosen):
    best = Best()
    for number, (accuracy, loss) in enumerate(epochs, 1):
        best = best.or_better(number, Scores(loss, [accuracy], 10))
    assert best.epoch == chosen


@pytest.mark.parametrize(("per_core", "named"), [(3.0, True), (1.0, False)])
def test_the_estimate_of_time_says_when_other_programs_use_the_machine(tmp_path, monkeypatch, per_core, named):
    cores = len(os.sched_getaffinity(0))
    monkeypatch.setattr(os, "getloadavg", lambda: (per_core * cores, 0.0, 0.0))
    written = io.StringIO()
    settings = ["data.batch_size=16", "schedule.epochs=1"]
    trained(tmp_path, settings, display=lambda session, notes: Display(session, notes, Console(file=written)))
    (line,) = [line for line in written.getvalue().splitlines() if line.startswith("time: about")]
    busy = f"other programs keep this machine busy (load {per_core * cores:.1f} on {cores} cores)"
    assert (busy in line) is named and ("the estimate may be too long" in line) is named


def test_a_folder_with_the_name_of_an_emoji_is_printed_as_it_is(tmp_path, capsys):
    trained(tmp_path / ":smile:[b]", ["schedule.epochs=1"], display=Display)
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("writing to")]
    assert line.endswith(":smile:[b]")
