"""Writes requirements-lock.txt: what is installed in this environment, with the sha256 of every file that pip fetches.

`make lock` runs it after a change of pyproject.toml or constraints.txt. It covers the platform it runs on. torch is
left out, because its builds (CPU, CUDA, local) have different files under one version, and so is what has no wheel.
"""

from __future__ import annotations

import json
import platform
import re
import subprocess
import sys
import tempfile
from importlib.metadata import distributions
from pathlib import Path

ROOT = Path(__file__).parent.parent
LEFT_OUT = {"torch", "steadyspike"}


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def installed() -> dict[str, str]:
    """Name to version (without a local part) of every installed package that the lock holds."""
    actual = {canonical(d.metadata["Name"]): d.version.partition("+")[0] for d in distributions()}
    return {name: version for name, version in sorted(actual.items()) if name not in LEFT_OUT}


def fetched(pins: dict[str, str]) -> dict[str, tuple[str, str]]:
    """Name to (version, sha256) of the wheel that pip would fetch here."""
    with tempfile.TemporaryDirectory() as folder:
        expected, report = Path(folder) / "pins.txt", Path(folder) / "report.json"
        expected.write_text("".join(f"{name}=={version}\n" for name, version in pins.items()))
        command = ["install", "--dry-run", "--ignore-installed", "--no-deps", "-q", "-r", str(expected)]
        subprocess.run([sys.executable, "-m", "pip", *command, "--report", str(report)], check=True)
        entries = json.loads(report.read_text())["install"]
    return {
        canonical(entry["metadata"]["name"]): (
            entry["metadata"]["version"],
            entry["download_info"]["archive_info"]["hashes"]["sha256"],
        )
        for entry in entries
        if entry["download_info"]["url"].endswith(".whl")
    }


def main() -> None:
    where = f"CPython {sys.version_info[0]}.{sys.version_info[1]}, {platform.system()} {platform.machine()}"
    lines = [f"# Made by `make lock` on {where}. CI installs it with --require-hashes; see SECURITY.md.\n"]
    for name, (version, digest) in sorted(fetched(installed()).items()):
        lines.append(f"{name}=={version} --hash=sha256:{digest}\n")
    (ROOT / "requirements-lock.txt").write_text("".join(lines))
    print(f"wrote requirements-lock.txt: {len(lines) - 1} packages for {where}")


if __name__ == "__main__":
    main()
