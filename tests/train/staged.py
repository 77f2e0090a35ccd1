"""Real processes that are sent real signals at a chosen place, forked from one that has imported everything.

python -m tests.train.staged OUT CASE...      plays cases of CASES (or "group"), prints what came of it as JSON

A process that comes to its place writes a file and waits there until the signals were sent.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

import steadyspike.train.build.data as data_module
import steadyspike.train.run.conclusion as conclusion_module
import steadyspike.train.run.training as run_module
from steadyspike.cli import app
from steadyspike.train.build.task import Task
from steadyspike.train.files.folder import RunFolder
from steadyspike.train.recipe import load_recipe
from steadyspike.train.run.training import train
from steadyspike.train.state.processes import Processes, leave_group
from tests.train.forked import free_port

SETTINGS = [
    "neuron.threshold=0.3", "model.options.dropout=0.3", "train.log_every=1", "train.ema=0.5", "schedule.epochs=2",
    "data.eval_batch_size=32",
]  # fmt: skip
# name: (place, how often the place is passed before, signals)
CASES = {
    "data": ("data", 0, [signal.SIGTERM]),
    "set-up": ("set-up", 0, [signal.SIGINT]),
    "first step": ("step", 0, [signal.SIGTERM]),
    "step": ("step", 7, [signal.SIGINT]),
    "evaluation": ("evaluation", 1, [signal.SIGINT]),
    "last evaluation": ("evaluation", 5 + 2, [signal.SIGTERM]),
    "test": ("test", 0, [signal.SIGTERM]),
    "twice": ("step", 7, [signal.SIGINT, signal.SIGINT]),
}  # fmt: skip
PLACES = {
    "data": (data_module, "load"),
    "set-up": (run_module, "open_tables"),
    "step": (Task, "forward"),
    "evaluation": (Task, "eval_step"),
    "test": (conclusion_module, "evaluate_part"),
}


def hold(location, passes, here, sent):
    """The place's function waits when it is entered for the last time."""
    owner, name = PLACES[location]
    original, left = getattr(owner, name), [passes]

    def waiting(*args, **kwargs):
        left[0] -= 1
        if left[0] == -1:
            here.touch()
            while not sent.exists():
                time.sleep(0.002)
        return original(*args, **kwargs)

    setattr(owner, name, waiting)


def fork(work, output):
    """A process that does ``work`` and writes to ``output``; its id."""
    pid = os.fork()
    if pid:
        return pid
    code = 99
    try:
        file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(file, 1)
        os.dup2(file, 2)
        work()
        code = 0
    except SystemExit as stop:
        code = stop.code
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def command(out, *more):
    settings = [part for setting in SETTINGS for part in ("--set", setting)]
    sys.argv = ["steadyspike", "train", "tiny", *settings, "--out", str(out), *more]
    app()


def wait_for(path, pids):
    while not path.exists():
        for pid in pids:
            if os.waitpid(pid, os.WNOHANG) != (0, 0):
                raise SystemExit(f"a process ended before {path}: " + path.with_suffix(".txt").read_text())
        time.sleep(0.002)


def ended(pid):
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def play(name, out):
    location, passes, numbers = CASES[name]
    here, sent, text = (out / f"{name}.{end}" for end in ("here", "sent", "txt"))

    def stopped():
        hold(location, passes, here, sent)
        command(out / name)

    pid = fork(stopped, text)
    wait_for(here, [pid])
    start = time.monotonic()
    for number in numbers:
        os.kill(pid, number)
        time.sleep(0.1)  # two signals of one kind at once would be one
    sent.touch()
    code, seconds, printed = ended(pid), time.monotonic() - start, text.read_text()
    text.unlink()
    last = out / name / "checkpoints" / "last.ckpt"
    before = last.stat().st_mtime_ns if last.exists() else None
    resumed = ended(fork(lambda: command(out / name, "--resume"), text))
    kept = before is not None and last.stat().st_mtime_ns == before
    return {
        "code": code,
        "said": printed,
        "seconds": seconds,
        "resumed": resumed,
        "then": text.read_text(),
        "kept": kept,
    }


def group(out, held):
    """Two processes; where ``held``, both wait in an evaluation and one of them is sent SIGTERM. Their exit codes."""
    recipe, folder = load_recipe("tiny", SETTINGS), RunFolder(out)
    out.mkdir(parents=True, exist_ok=True)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    sent = out / "sent"

    def rank(number):
        if held:
            hold("evaluation", 1, out / f"here{number}", sent)
        result = train(recipe, folder, resume=True, processes=Processes(number, 2, number))
        leave_group()
        raise SystemExit(result.get("signal", 0))

    pids = [fork(lambda n=n: rank(n), out / "group.txt") for n in range(2)]
    if held:
        for number in range(2):
            wait_for(out / f"here{number}", pids)
        os.kill(pids[1], signal.SIGTERM)
        sent.touch()
    return [ended(pid) for pid in pids]


if __name__ == "__main__":
    root = Path(sys.argv[1])
    results = {name: play(name, root) for name in sys.argv[2:] if name in CASES}
    if "group" in sys.argv[2:]:
        straight, stopped, resumed = (
            group(root / name, held) for name, held in (("group-straight", False), ("group", True), ("group", False))
        )
        results["group"] = {"straight": straight, "stopped": stopped, "resumed": resumed}
    print(json.dumps(results))
