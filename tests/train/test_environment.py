"""What a run notes about where it ran."""

import importlib.util
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from steadyspike.train.files import environment


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_the_commit_is_found_without_writing_into_the_repository(tmp_path: Path) -> None:
    """`git status` brings the index up to date where a file has another date, under a lock that a full disk leaves."""
    copy = tmp_path / "src" / "steadyspike" / "train" / "files" / "environment.py"
    copy.parent.mkdir(parents=True)
    shutil.copyfile(environment.__file__, copy)
    who = ["-c", "user.name=a", "-c", "user.email=a@b"]
    for command in (["init", "-q"], ["add", "."], [*who, "commit", "-qm", "first"]):
        subprocess.run(["git", "-C", str(tmp_path), *command], check=True)
    os.utime(copy, (1, 1))
    index = tmp_path / ".git" / "index"
    before = index.read_bytes(), index.stat().st_mtime_ns
    spec = importlib.util.spec_from_file_location("copied_environment", copy)
    assert spec is not None and spec.loader is not None
    copied = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(copied)
    actual = copied.commit()
    assert actual is not None and len(actual) == 40
    assert (index.read_bytes(), index.stat().st_mtime_ns) == before
    copy.write_text(copy.read_text() + "\n")
    assert copied.commit() == f"{actual}+changes"
