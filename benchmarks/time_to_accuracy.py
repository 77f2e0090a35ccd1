"""Minutes until a network has an accuracy on CIFAR-10: ours, and the same network and recipe in SpikingJelly.

    RECIPE="zoo-cifar10-resnet19-first --data-dir DATA"
    steadyspike train $RECIPE --out ours
    steadyspike train $RECIPE --out peer --set model.name=benchmarks.peer_network:resnet19 --set train.events=false
    python -m benchmarks.time_to_accuracy --follow ours    # during the training: the test accuracy after every epoch
    python -m benchmarks.time_to_accuracy --follow peer
    python -m benchmarks.time_to_accuracy --ours ours --peer peer [--threads 2] --data-dir DATA    # time, record, draw

A follower evaluates the moving average of the weights in another process, so the training neither waits for it nor
selects an epoch. The minutes are the number of steps times the time of a step. That time is measured at the end, with
nothing else running: real steps of both runs in turns, with the weights of their newest checkpoints, the same batches,
the optimizer and the average. Evaluation takes no part in it. ``--ours`` and ``--peer`` take several runs if each
started with the weights of the one before it.
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

GOALS = (70, 80, 85, 90)
ROUNDS, STEPS = 6, 8  # of the measurement of a step
CURVE = "test-accuracy.txt"
FIGURE = machine.ROOT / "docs" / "figures" / "time-to-accuracy.png"
NAMES = {"SteadySpike": "time-to-accuracy:steadyspike", "SpikingJelly PLIF": "time-to-accuracy:spikingjelly"}


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
    """Yields the seconds of one training step after another; the run's files are not changed."""
    folder = RunFolder(run)
    recipe = folder.read_recipe()
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


def measure(runs: dict[Path, Iterator[float]]) -> dict[Path, float]:
    """Returns the median seconds of a step of every run; the runs are timed in turns."""
    times: dict[Path, list[float]] = {run: [] for run in runs}
    for _ in range(ROUNDS):
        for run, steps in runs.items():
            next(steps)  # the caches still have the other run's data
            times[run] += islice(steps, STEPS)
    return {run: statistics.median(seconds) for run, seconds in times.items()}


def minutes_to(minutes: Sequence[float], accuracies: Sequence[float], goal: float) -> float | None:
    """Returns the minutes at the first epoch from which on the accuracy stays at ``goal`` or above, or None."""
    reached = None
    for time_, accuracy in zip(minutes, accuracies):
        reached = None if accuracy < goal else time_ if reached is None else reached
    return reached


def measurement(name: str, runs: Sequence[Path], seconds: dict[Path, float], threads: int) -> Measured:
    """Returns what is recorded of a training that took one or more runs."""
    before, minutes, accuracies, notes = 0.0, [], [], []
    for run in runs:
        folder, rows = RunFolder(run), _rows(run)
        recipe = folder.read_recipe()
        minutes += [round(before + seconds[run] * steps / 60, 2) for _, steps, _ in rows]
        accuracies += [accuracy for *_, accuracy in rows]
        before = minutes[-1]
        notes.append(f"T = {recipe.data.timesteps}: {rows[-1][0]} of {recipe.schedule.epochs} epochs")
    about, now = RunFolder(runs[0]).read_json("run.json")["environment"], machine.describe(threads)
    return Measured(
        recipe=name,
        seed=recipe.train.seed,
        value=accuracies[-1],
        commit=f"{about['commit']}, {now['commit']}",
        hardware=f"{result_tables.kind(now)}, {threads} of {now['cores']} cores",
        software=f"torch {about['packages']['torch']}, spikingjelly {version('spikingjelly')}",
        date=now["time"][:10],
        note="; ".join(notes),
        numbers={
            "minutes": minutes,
            "accuracy": accuracies,
            "milliseconds per step": [round(1e3 * seconds[run], 1) for run in runs],
        },
    )


def _series(run: Measured, number: str) -> list[float]:
    values = run.numbers[number]
    assert isinstance(values, list)
    return values


def table(recorded: Recorded) -> str:
    """Returns the minutes to every goal, and what they were measured on."""
    runs = [entries[-1] for name in NAMES.values() if (entries := recorded.newest(name))]
    if len(runs) < len(NAMES):
        return NOT_RUN
    lines = [f"| test accuracy | {' | '.join(NAMES)} | ratio |", "|---|---|---|---|"]
    for goal in GOALS:
        times = [minutes_to(_series(run, "minutes"), _series(run, "accuracy"), goal) for run in runs]
        cells = [f"{minutes:.1f} min" if minutes is not None else "not reached" for minutes in times]
        ours, theirs = times
        ratio = f"{theirs / ours:.1f}" if ours and theirs else "-"
        lines.append(f"| {goal} % | {' | '.join(cells)} | {ratio} |")
    for label, run in zip(NAMES, runs):
        steps = " and ".join(f"{step:.0f}" for step in _series(run, "milliseconds per step"))
        lines.append(f"\n{label}: {run.note}; {steps} ms a step; last accuracy {run.text}; {run.software}.")
    return "\n".join(lines)


def draw(recorded: Recorded) -> None:
    """Draws accuracy over minutes."""
    with styled():
        figure, axes = panels(1, 1, width=5, height=3)
        axis = axes.flat[0]
        for i, (label, name) in enumerate(NAMES.items()):
            run = recorded.newest(name)[-1]
            axis.plot(
                _series(run, "minutes"), _series(run, "accuracy"), label=label, color=COLOURS[i], marker=MARKERS[i]
            )
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
    if not args.ours or not args.peer:
        parser.error("--ours and --peer are needed, or --follow")
    torch.set_num_threads(args.threads)
    keep_freed_memory()
    seconds = measure({run: steps_of(run, args.data_dir) for run in (*args.ours, *args.peer)})
    for name, runs in zip(NAMES.values(), (args.ours, args.peer)):
        add(results_root() / "time.json", measurement(name, runs, seconds, args.threads))
    recorded = Recorded()
    draw(recorded)
    results_page.write()
    print(table(recorded))
    return 0


if __name__ == "__main__":
    sys.exit(main())
