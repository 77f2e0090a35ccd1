"""One process of a run with several: ``python -m steadyspike.train.run.rank FOLDER``, started by `launch`."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from steadyspike.nn.memory.heap import keep_freed_memory
from steadyspike.train.callbacks.display import Display
from steadyspike.train.files.folder import RunFolder
from steadyspike.train.run.trainer import Processes, leave_group
from steadyspike.train.run.training import train
from steadyspike.train.session.signals import exit_code


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--data-dir", type=Path, default=None)
    parser.add_argument("--resume", action="store_true")
    options = parser.parse_args()
    folder = RunFolder(options.folder)
    keep_freed_memory()  # the process is ours, as in `steadyspike train`
    result = train(
        folder.read_recipe(),
        folder,
        data_dir=options.data_dir,
        resume=options.resume,
        processes=Processes(int(os.environ["WORLD_SIZE"])),
        rank=int(os.environ["LOCAL_RANK"]),
        display=Display,
    )
    leave_group()
    if result["status"] == "interrupted":
        raise SystemExit(exit_code(result["signal"]))


if __name__ == "__main__":
    main()
