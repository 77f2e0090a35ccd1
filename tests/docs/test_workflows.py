"""The files for GitHub and pre-commit can be read, and what they call exists in the repository."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from tests.docs.markdown import ROOT, name

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    import tomli as tomllib

FILES = [*sorted((ROOT / ".github").rglob("*.yml")), ROOT / ".pre-commit-config.yaml", ROOT / "CITATION.cff"]
WORKFLOWS = [path for path in FILES if path.parent.name == "workflows"]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.mark.parametrize("path", FILES, ids=name)
def test_file_is_yaml(path: Path) -> None:
    assert isinstance(yaml.safe_load(path.read_text()), dict)


def commands(path: Path) -> list[str]:
    """Returns what the steps of a workflow run."""
    jobs = yaml.safe_load(path.read_text())["jobs"]
    return [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]


@pytest.mark.parametrize("path", WORKFLOWS, ids=name)
def test_what_a_workflow_runs_exists(path: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for command in commands(path):
        assert set(re.findall(r"\bmake ([a-z-]+)", command)) <= targets, command
        for file in re.findall(r"(?<![\w/])(?:source/)?((?:tools/|\.ci/)[\w./]+)", command):
            assert (ROOT / file).is_file(), command
        for extras in re.findall(r"\.\[([\w,]+)\]", command):
            assert set(extras.split(",")) <= set(PROJECT["optional-dependencies"]), command


def test_the_oldest_and_newest_claimed_versions_are_tested() -> None:
    jobs = yaml.safe_load((ROOT / ".github/workflows/tests.yml").read_text())["jobs"]
    entries = jobs["versions"]["strategy"]["matrix"]["include"]
    pythons = {entry["python"] for entry in entries}
    prefix = "Programming Language :: Python :: 3."
    claimed = sorted(int(text.removeprefix(prefix)) for text in PROJECT["classifiers"] if text.startswith(prefix))
    assert {f"3.{claimed[0]}", f"3.{claimed[-1]}"} <= pythons
    assert PROJECT["requires-python"] == f">=3.{claimed[0]}"
    (oldest,) = re.findall(r"torch>=([\d.]+)", " ".join(PROJECT["dependencies"]))
    assert any(entry["torch"].startswith(f"torch=={oldest}.") for entry in entries)
    assert any(entry["torch"] == "torch" for entry in entries)


def test_the_version_is_written_in_one_place() -> None:
    import steadyspike

    assert "version" in PROJECT["dynamic"] and "version" not in yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert f"## {steadyspike.__version__} " in (ROOT / "CHANGELOG.md").read_text()


@pytest.mark.parametrize("path", FILES, ids=name)
def test_hooks_and_templates_name_existing_files(path: Path) -> None:
    for file in re.findall(r"(?<![\w./])(?:tests|docs|tools|src)/[\w./]+\.(?:py|md|txt)", path.read_text()):
        assert (ROOT / file).exists(), f"{name(path)} names {file}"
