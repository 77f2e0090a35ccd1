"""Networks that are packaged with the library (the zoo): each is the folder of a finished run without checkpoints."""

from __future__ import annotations

import difflib
import filecmp
import shutil
from pathlib import Path

from steadyspike.data.cache import build_once, default_dir, writable_dir
from steadyspike.disk.checksum import file_sha256
from steadyspike.train.files.folder import RunError, RunFolder

NETWORKS = Path(__file__).parents[2] / "zoo" / "networks"


def packaged_names() -> list[str]:
    """Names of the packaged networks."""
    return sorted(path.parent.name for path in NETWORKS.glob("*/network.json"))


def find_packaged(name: str | Path) -> Path | None:
    """The folder of the packaged network with this name; None if ``name`` is a path or unknown."""
    text = str(name)
    return NETWORKS / text if text in packaged_names() else None


def run_folder(source: str | Path) -> Path:
    """The folder of a run, given as a path or as the name of a packaged network; RunError if it is neither.

    A path that exists counts before a name. The folder of a packaged network is a copy in the user's cache, because
    commands write files into a run's folder (folded.safetensors, report.html).
    """
    path = Path(source)
    if path.exists() or len(path.parts) != 1:
        return path
    packaged = find_packaged(source)
    if packaged is None:
        close = difflib.get_close_matches(str(source), packaged_names(), 1)
        hint = f" (did you mean {close[0]}?)" if close else ""
        raise RunError(f"{source} is neither a folder nor a network that `steadyspike zoo` lists{hint}")
    return _copy(packaged)


def _copy(packaged: Path) -> Path:
    files = [path for path in sorted(packaged.iterdir()) if path.is_file()]
    stamp = file_sha256(RunFolder(packaged).weights)[:12]
    target = writable_dir(default_dir()) / "zoo" / f"{packaged.name}-{stamp}"

    def complete(folder: Path) -> bool:
        copies = [(file, folder / file.name) for file in files]
        return all(copy.is_file() and filecmp.cmp(file, copy, shallow=False) for file, copy in copies)

    def fill(folder: Path) -> None:
        for file in files:
            shutil.copyfile(file, folder / file.name)

    return build_once(target, complete, fill)
