"""Minutes until a network has an accuracy on CIFAR-10: ours, and the same network and recipe in SpikingJelly.

    steadyspike train direct-cifar10-resnet19-first --data-dir DATA --out first
    python -m benchmarks.time_to_accuracy --follow first    # during the training: test accuracy after every epoch
    python -m benchmarks.time_to_accuracy --ours first second --data-dir DATA      # time steps, record, draw

    steadyspike train direct-cifar10-resnet19-first --data-dir DATA --out peer \\
        --set model.name=benchmarks.peer_network:resnet19 --set train.events=false
    python -m benchmarks.time_to_accuracy --follow peer
    python -m benchmarks.time_to_accuracy --ours first second --peer peer --data-dir DATA

A follower evaluates the moving average of the weights in another process, so the training neither waits for it nor
selects an epoch. ``--ours`` and ``--peer`` take several runs if each started with the weights of the one before it.

The minutes are the number of steps times the time of a step. That time is measured at the end, with nothing else
running and in turns: real steps of our runs and of SpikingJelly's neurons in the same network, with the weights of our
newest checkpoints, the same batches, the optimizer and the average. Evaluation is not part of it.
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
PEER = "benchmarks.peer_network:resnet19"
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


def steps_of(run: Path, data_dir: Path | None, peer: bool) -> Iterator[float]:
    """Yields the seconds of one training step after another; the run's files are not changed.

    peer: with SpikingJelly's neurons, and otherwise the same weights
    """
    folder = RunFolder(run)
    recipe = folder.read_recipe()
    recipe = recipe.model_copy(update={"train": recipe.train.model_copy(update={"start": None, "events": not peer})})
    if peer:
        recipe = recipe.model_copy(update={"model": recipe.model.model_copy(update={"name": PEER})})
    session = Session.new(recipe, folder, RunData(recipe, data_dir or folder.data_dir()))
    state = read_checkpoint(folder.last)["state_dict"]
    session.task.model.load_state_dict(state, strict=not peer)
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


class Seconds(NamedTuple):
    """The median seconds of a training step of one of our runs, and of the same with SpikingJelly's neurons."""

    ours: float
    peer: float


def measure(run: Path, data_dir: Path | None) -> Seconds:
    """Times both in turns."""
    contenders = [steps_of(run, data_dir, peer) for peer in (False, True)]
    times: list[list[float]] = [[], []]
    for _ in range(ROUNDS):
        for seconds, steps in zip(times, contenders):
            next(steps)  # the caches still have the other one's data
            seconds += islice(steps, STEPS)
    return Seconds(*map(statistics.median, times))


def minutes_to(minutes: Sequence[float], accuracies: Sequence[float], goal: float) -> float | None:
    """Returns the minutes at the first epoch from which on the accuracy stays at ``goal`` or above, or None."""
    reached = None
    for time_, accuracy in zip(minutes, accuracies):
        reached = None if accuracy < goal else time_ if reached is None else reached
    return reached


def measurement(label: str, runs: Sequence[Path], seconds: dict[int, Seconds], threads: int) -> Measured:
    """Returns what is recorded of a training that took one or more runs.

    seconds: by the number of time steps
    """
    times: dict[str, list[float]] = {name: [] for name in NAMES}
    accuracies, notes, before = [], [], dict.fromkeys(NAMES, 0.0)
    for run in runs:
        recipe, rows = RunFolder(run).read_recipe(), _rows(run)
        for name, step in zip(NAMES, seconds[recipe.data.timesteps]):
            times[name] += [round(before[name] + step * steps / 60, 2) for _, steps, _ in rows]
            before[name] = times[name][-1]
        accuracies += [accuracy for *_, accuracy in rows]
        notes.append(f"T = {recipe.data.timesteps}: {rows[-1][0]} of {recipe.schedule.epochs} epochs")
    about, now = RunFolder(runs[0]).read_json("run.json")["environment"], machine.describe(threads)
    return Measured(
        recipe=NAMES[label], seed=recipe.train.seed, value=accuracies[-1],
        commit=f"{about['commit']}, {now['commit']}",
        hardware=f"{result_tables.kind(now)}, {threads} of {now['cores']} cores",
        software=f"torch {about['packages']['torch']}, spikingjelly {version('spikingjelly')}",
        date=now["time"][:10], note="; ".join(notes),
        numbers={
            "accuracy": accuracies,
            **{f"minutes of {name}": times[name] for name in NAMES},
            **{
                f"milliseconds per step of {name}": [round(1e3 * step[i], 1) for step in seconds.values()]
                for i, name in enumerate(NAMES)
            },
        },
    )  # fmt: skip


def _series(run: Measured, number: str) -> list[float]:
    values = run.numbers[number]
    assert isinstance(values, list)
    return values


def _newest(recorded: Recorded, label: str) -> Measured | None:
    entries = recorded.newest(NAMES[label])
    return entries[-1] if entries else None


def table(recorded: Recorded) -> str:
    """Returns the minutes to every goal, and what they were measured on."""
    ours, peer = (_newest(recorded, label) for label in NAMES)
    if ours is None:
        return NOT_RUN
    own, other = NAMES
    head = ["test accuracy", own, f"as many steps with {other}", f"{other} to this accuracy"]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for goal in GOALS:
        accuracies = _series(ours, "accuracy")
        times = [minutes_to(_series(ours, f"minutes of {label}"), accuracies, goal) for label in NAMES]
        to_goal = peer and minutes_to(_series(peer, f"minutes of {other}"), _series(peer, "accuracy"), goal)
        cells = [f"{minutes:.1f} min" if minutes else "not reached" for minutes in (*times, to_goal)]
        lines.append(f"| {goal} % | {' | '.join(cells if peer else [*cells[:2], NOT_RUN])} |")
    each = [" and ".join(f"{ms:.0f}" for ms in _series(ours, f"milliseconds per step of {label}")) for label in NAMES]
    lines.append(f"\nA step at T = 1 and at T = 2 takes {each[0]} ms, with {other} {each[1]} ms.")
    lines += [f"\n{label}: {run.text}; {run.software}." for label, run in zip(NAMES, (ours, peer)) if run is not None]
    return "\n".join(lines)


def draw(recorded: Recorded) -> None:
    """Draws accuracy over minutes."""
    with styled():
        figure, axes = panels(1, 1, width=5, height=3)
        axis = axes.flat[0]
        for i, label in enumerate(NAMES):
            if (run := _newest(recorded, label)) is not None:
                minutes, accuracy = _series(run, f"minutes of {label}"), _series(run, "accuracy")
                axis.plot(minutes, accuracy, label=label, color=COLOURS[i], marker=MARKERS[i])
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
    seconds = {RunFolder(run).read_recipe().data.timesteps: measure(run, args.data_dir) for run in args.ours}
    for label, runs in zip(NAMES, (args.ours, args.peer)):
        if runs:
            add(results_root() / "time.json", measurement(label, runs, seconds, args.threads))
    recorded = Recorded()
    draw(recorded)
    results_page.write()
    print(table(recorded))
    return 0


if __name__ == "__main__":
    sys.exit(main())
