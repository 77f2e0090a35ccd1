"""One process of a run with several: ``python -m steadyspike.train.worker FOLDER``, started by `launch`."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from steadyspike.train.display import Display
from steadyspike.train.folder import RunFolder
from steadyspike.train.run import Processes, leave_group, train


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--data-dir", type=Path, default=None)
    parser.add_argument("--resume", action="store_true")
    options = parser.parse_args()
    folder = RunFolder(options.folder)
    train(
        folder.read_recipe(),
        folder,
        data_dir=options.data_dir,
        resume=options.resume,
        processes=Processes(int(os.environ["WORLD_SIZE"])),
        rank=int(os.environ["LOCAL_RANK"]),
        display=Display,
    )
    leave_group()


if __name__ == "__main__":
    main()
