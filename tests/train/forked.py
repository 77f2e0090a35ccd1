"""Runs training in forked processes, so that several real processes cost one import.

python -m tests.train.forked kill OUT LINES...   kills the trainer with SIGKILL each time steps.csv has that many lines
python -m tests.train.forked group OUT N          trains every one of GROUPS with N gloo processes
"""

import os
import signal
import socket
import sys
import time
from pathlib import Path

from steadyspike.train.files.folder import RunFolder
from steadyspike.train.recipe import load_recipe
from steadyspike.train.run.training import train
from steadyspike.train.state.processes import Processes, leave_group

KILLED = [
    "train.save_every=2", "train.log_every=1", "train.ema=0.9", "train.accumulate=2", "model.options.dropout=0.3",
    "neuron.threshold=0.3", "data.batch_size=16",
]  # fmt: skip
GROUP = [
    "data.augment=false", "neuron.threshold=0.3", "train.seed=3", "optimizer.lr=0.02", "train.log_every=1",
]  # fmt: skip
# torch sums the statistics of a channels_last batch norm naively (errors of 1e-5 here, 1e-7 otherwise), and only in a
# single process: spikes flip after some steps. So the layouts are compared to the end where that sum is not taken.
GROUPS = {
    "plain": [*GROUP, "train.channels_last=false"],
    "channels-last": [*GROUP, "norm.name=none", "neuron.threshold=0.05"],
    "default": [*GROUP, "schedule.epochs=1"],
}


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def fork(work):
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        work()
        code = 0
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def lines(path):
    return path.read_bytes().count(b"\n") if path.exists() else 0


def kill(out, counts):
    recipe, folder = load_recipe("tiny", KILLED), RunFolder(out)
    out.mkdir(parents=True)
    for count in counts:
        pid = fork(lambda: train(recipe, folder, resume=True))
        while lines(out / "steps.csv") < count:
            if os.waitpid(pid, os.WNOHANG) != (0, 0):
                raise SystemExit(f"the run ended before line {count}")
            time.sleep(0.002)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    train(recipe, folder, resume=True)


def group(out, settings, count):
    recipe, folder = load_recipe("tiny", [*settings, f"train.devices={count}"]), RunFolder(out)
    out.mkdir(parents=True)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}

    def rank(number):
        train(recipe, folder, processes=Processes(number, count, number))
        leave_group()

    codes = [os.waitpid(pid, 0)[1] for pid in [fork(lambda n=n: rank(n)) for n in range(count)]]
    if any(codes):
        raise SystemExit(f"{out.name}: {codes}")


if __name__ == "__main__":
    mode, target, *rest = sys.argv[1:]
    if mode == "kill":
        kill(Path(target), [int(n) for n in rest])
    else:
        for variant, settings in GROUPS.items():
            group(Path(target) / variant, settings, int(rest[0]))
