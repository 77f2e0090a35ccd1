"""Minutes until a network has an accuracy on CIFAR-10: ours, and the same network and recipe in SpikingJelly.

    steadyspike train zoo-cifar10-resnet19-relu --data-dir DATA     # runs/zoo-cifar10-resnet19-relu/001
    steadyspike train zoo-cifar10-resnet19 --data-dir DATA --out ours
    python -m benchmarks.time_to_accuracy --follow ours    # during the training: test accuracy after every epoch
    steadyspike train zoo-cifar10-resnet19 --data-dir DATA --out peer \\
        --set model.name=benchmarks.peer_network:resnet19 --set train.events=false --set 'loss.terms={}'
    python -m benchmarks.time_to_accuracy --follow peer
    python -m benchmarks.time_to_accuracy --data-dir DATA --ours runs/zoo-cifar10-resnet19-relu/001 ours \\
        --peer runs/zoo-cifar10-resnet19-relu/001 peer     # time steps, record, draw

Both start with the weights of the same ordinary network, whose training is part of the minutes. The penalty on
spikes is ours only. A follower evaluates the moving average of the weights in another process, so the training neither
waits for it nor selects an epoch. A run may be stopped before its last epoch.

The minutes are the number of steps times the time of a step. That time is measured at the end, with nothing else
running: real steps of all runs in turns, with the weights of their newest checkpoints, the same batches, the optimizer
and the average. Evaluation is not part of it. The curve from random weights was recorded with the recipes `direct-*`.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import torch
from benchmarks import machine, result_tables, results_page

from steadyspike.core.heap import keep_freed_memory
from steadyspike.paper.figures.style import COLOURS, MARKERS, panels, save, styled
from steadyspike.paper.work.page import NOT_RUN
from steadyspike.paper.work.recorded import Recorded
from steadyspike.results.measured import Measured, results_root
from steadyspike.results.recording import add
from steadyspike.train.build.data import RunData
from steadyspike.train.build.task import task_for
from steadyspike.train.files.checkpoint import read_checkpoint
from steadyspike.train.files.folder import RunFolder
from steadyspike.train.run.evaluation import evaluate_part
from steadyspike.train.run.loading import load_checkpoint
from steadyspike.train.state.session import Session

GOALS = (70, 75, 80, 85, 90)
ROUNDS, STEPS = 6, 8  # of the measurement of a step
CURVE = "test-accuracy.txt"
FIGURE = machine.ROOT / "docs" / "figures" / "time-to-accuracy.png"
OURS, DIRECT, PEER = "SteadySpike", "SteadySpike from random weights", "SpikingJelly PLIF"
CURVES = {
    OURS: "time-to-accuracy:relu-start",
    DIRECT: "time-to-accuracy:steadyspike",
    PEER: "time-to-accuracy:spikingjelly",
}  # label -> name of the recorded numbers


def follow(run: Path, data_dir: Path | None) -> None:
    """Adds a row to RUN/test-accuracy.txt after every epoch of a training, until its last one."""
    file, last = RunFolder(run), run / "checkpoints" / "last.ckpt"
    epochs, seen = file.read_recipe().schedule.epochs, {epoch for epoch, *_ in _rows(run)}
    changed = 0.0
    while not seen or max(seen) < epochs:
        if not last.exists() or (now := last.stat().st_mtime) == changed:
            time.sleep(5)
            continue
        changed, state = now, read_checkpoint(last)
        if state["batch"] == 0 and state["epoch"] and state["epoch"] not in seen:
            loaded = load_checkpoint(last, data_dir)
            task = task_for(loaded.recipe, loaded.data)
            task.model.load_state_dict(state["average"] or state["state_dict"])
            accuracy = evaluate_part(task, loaded.data, "test").selects
            with (run / CURVE).open("a") as table:
                print(state["epoch"], state["step"], f"{accuracy:.4g}", sep=",", file=table)
            seen.add(state["epoch"])
            print(f"epoch {state['epoch']}: {accuracy:.2f} %", flush=True)


def _rows(run: Path) -> list[tuple[int, int, float]]:
    if not (run / CURVE).exists():
        return []
    with (run / CURVE).open() as file:
        return [(int(epoch), int(steps), float(accuracy)) for epoch, steps, accuracy in csv.reader(file)]


def steps_of(run: Path, data_dir: Path | None) -> Iterator[float]:
    """Yields the seconds of one training step of a run after another; the run's files are not changed."""
    folder = RunFolder(run)
    recipe = folder.read_recipe()
    recipe = recipe.model_copy(update={"train": recipe.train.model_copy(update={"start": None})})
    session = Session.new(recipe, folder, RunData(recipe, data_dir or folder.data_dir()))
    session.task.model.load_state_dict(read_checkpoint(folder.last)["state_dict"])
    session.task.train()
    if session.average is not None:
        session.average.start()
    batches = iter(session.data.train_loader)
    while True:
        start = time.perf_counter()
        session.task(next(batches)).backward()
        session.optimizer.step()
        session.optimizer.zero_grad()
        if session.average is not None:
            session.average.update(recipe.train.ema_ramp)
        session.task.step_losses.clear()
        yield time.perf_counter() - start


def measure(runs: Sequence[Path], data_dir: Path | None) -> dict[Path, float]:
    """Returns the median seconds of a step of every run; all runs take turns."""
    contenders = {run: steps_of(run, data_dir) for run in runs}
    times: dict[Path, list[float]] = {run: [] for run in contenders}
    for _ in range(ROUNDS):
        for run, steps in contenders.items():
            next(steps)  # the caches still have the other one's data
            times[run] += islice(steps, STEPS)
    return {run: statistics.median(seconds) for run, seconds in times.items()}


def minutes_to(minutes: Sequence[float], accuracies: Sequence[float], goal: float) -> float | None:
    """Returns the minutes at the first epoch with an accuracy of at least ``goal``, or None."""
    return next((time_ for time_, accuracy in zip(minutes, accuracies) if accuracy >= goal), None)


def measurement(label: str, runs: Sequence[Path], seconds: dict[Path, float], threads: int) -> Measured:
    """Returns what is recorded of a training that took one or more runs, of which some may have no curve."""
    minutes: list[float] = []
    accuracies, notes, before = [], [], 0.0
    for run in runs:
        recipe, rows = RunFolder(run).read_recipe(), _rows(run)
        accuracies += [accuracy for *_, accuracy in rows]
        minutes += [round(before + seconds[run] * steps / 60, 2) for _, steps, _ in rows]
        before += seconds[run] * read_checkpoint(RunFolder(run).last)["step"] / 60
        epochs = f"{read_checkpoint(RunFolder(run).last)['epoch']} of {recipe.schedule.epochs} epochs"
        notes.append(f"{recipe.neuron.name}, T = {recipe.data.timesteps}: {epochs}, {1e3 * seconds[run]:.0f} ms a step")
    about, now = RunFolder(runs[-1]).read_json("run.json")["environment"], machine.describe(threads)
    return Measured(
        recipe=CURVES[label], seed=recipe.train.seed, value=accuracies[-1],
        commit=f"{about['commit']}, {now['commit']}",
        hardware=f"{result_tables.kind(now)}, {threads} of {now['cores']} cores",
        software=f"torch {about['packages']['torch']}, spikingjelly {version('spikingjelly')}",
        date=now["time"][:10], note="; ".join(notes),
        numbers={"accuracy": accuracies, "minutes": minutes},
    )  # fmt: skip


class Curve(NamedTuple):
    """Test accuracies over minutes, and what they were measured on."""

    minutes: list[float]
    accuracies: list[float]
    run: Measured


def curves(recorded: Recorded) -> dict[str, Curve]:
    """Returns the newest recorded curve of every label that has one."""
    chosen = {}
    for label, name in CURVES.items():
        if entries := recorded.newest(name):
            minutes, accuracies = (entries[-1].numbers[key] for key in ("minutes", "accuracy"))
            assert isinstance(minutes, list) and isinstance(accuracies, list)
            chosen[label] = Curve(minutes, accuracies, entries[-1])
    return chosen


def table(recorded: Recorded) -> str:
    """Returns the minutes to every goal, and what they were measured on."""
    shown = curves(recorded)
    if not shown:
        return NOT_RUN
    lines = [f"| test accuracy | {' | '.join(shown)} |", "|---" * (len(shown) + 1) + "|"]
    for goal in GOALS:
        times = [minutes_to(curve.minutes, curve.accuracies, goal) for curve in shown.values()]
        lines.append(f"| {goal} % | {' | '.join(f'{m:.1f} min' if m else 'not reached' for m in times)} |")
    lines += [f"\n{label}: {curve.run.text}; {curve.run.software}." for label, curve in shown.items()]
    return "\n".join(lines)


def draw(recorded: Recorded) -> None:
    """Draws accuracy over minutes."""
    with styled():
        figure, axes = panels(1, 1, width=5, height=3)
        axis = axes.flat[0]
        for i, (label, curve) in enumerate(curves(recorded).items()):
            axis.plot(curve.minutes, curve.accuracies, label=label, color=COLOURS[i], marker=MARKERS[i])
        axis.set_xlabel("minutes of training")
        axis.set_ylabel("test accuracy on CIFAR-10 (%)")
        axis.legend()
        save(figure, FIGURE)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--follow", type=Path, help="a run that is being trained")
    parser.add_argument("--ours", type=Path, nargs="+", default=[])
    parser.add_argument("--peer", type=Path, nargs="+", default=[])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--data-dir", type=Path)
    args = parser.parse_args()
    if args.follow:
        follow(args.follow, args.data_dir)
        return 0
    if not args.ours:
        parser.error("--ours or --follow is needed")
    torch.set_num_threads(args.threads)
    keep_freed_memory()
    seconds = measure([*args.ours, *args.peer], args.data_dir)
    for label, runs in ((OURS, args.ours), (PEER, args.peer)):
        if runs:
            add(results_root() / "time.json", measurement(label, runs, seconds, args.threads))
    recorded = Recorded()
    draw(recorded)
    results_page.write()
    print(table(recorded))
    return 0


if __name__ == "__main__":
    sys.exit(main())
