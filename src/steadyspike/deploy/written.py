"""Writes a file atomically: after a crash either the old or the new file exists; its mode follows the umask."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def write_file(path: str | os.PathLike[str], content: bytes) -> Path:
    """Writes ``content`` under a temporary name and renames it to ``path``; returns ``path``."""
    target = Path(path)
    if not target.parent.is_dir():
        raise FileNotFoundError(f"{target.parent} is not a folder")
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        part.write_bytes(content)
        os.replace(part, target)
    finally:
        with suppress(OSError):  # it was renamed
            part.unlink()
    return target
