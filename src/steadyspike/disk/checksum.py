"""The checksum of a whole file, to check that it is unchanged."""

from __future__ import annotations

import hashlib
from pathlib import Path

BLOCK = 1 << 20


def file_sha256(path: str | Path) -> str:
    """Returns the sha256 of a file's bytes as 64 hexadecimal digits; raises OSError if the file cannot be read."""
    digest = hashlib.sha256()
    with open(path, "rb") as stream:
        while block := stream.read(BLOCK):
            digest.update(block)
    return digest.hexdigest()
