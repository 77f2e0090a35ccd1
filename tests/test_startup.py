"""Commands that need no torch do not import it, and an install without extras says what to install."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.report.made import made_run

HIDE = """
import sys
blocked = set(sys.argv.pop(1).split(","))
class Hide:
    def __init__(self, finder):
        self.finder = finder
    def __getattr__(self, name):
        return getattr(self.finder, name)
    def find_spec(self, name, path=None, target=None):
        return None if name.split(".")[0] in blocked else self.finder.find_spec(name, path, target)
sys.meta_path[:] = [Hide(finder) for finder in sys.meta_path]
"""
EXTRAS = "typer,rich,pydantic,tensorboard,safetensors,PIL,tqdm,matplotlib,aedat,lightning,sklearn,scipy,onnx"


def python(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("--help", 0), ("train --help", 0), ("recipes", 0),
        ("recipes --show demo", 0), ("runs ROOT", 0), ("show RUN", 0),
        ("recipes --show dmo", 1), ("runs /nowhere", 1), ("show /nowhere", 1),  # errors are quick, too
    ],
)  # fmt: skip
def test_no_torch(command: str, code: int, tmp_path: Path) -> None:
    run = tmp_path / "demo" / "001"
    made_run(run)
    arguments = command.replace("ROOT", str(tmp_path)).replace("RUN", str(run)).split()
    program = (
        "import sys; from steadyspike_command import main\n"
        f"try:\n    main()\nexcept SystemExit as end:\n    assert (end.code or 0) == {code}, end.code\n"
        "print(sorted({'torch', 'numpy', 'matplotlib', 'lightning', 'PIL'} & set(sys.modules)))"
    )
    done = python(program, *arguments)
    assert done.returncode == 0 and done.stdout.splitlines()[-1] == "[]", done.stdout[-500:] + done.stderr[-2000:]


def test_training_does_not_import_the_compiler(tmp_path: Path) -> None:
    program = (
        "import sys; from steadyspike_command import main\n"
        "try:\n    main()\nexcept SystemExit as end:\n    assert not end.code, end.code\n"
        "print(sorted({'torch._dynamo', 'torch._inductor', 'sympy', 'onnx', 'lightning'} & set(sys.modules)))"
    )
    done = python(program, "train", "tiny", "--set", "schedule.epochs=1", "--out", str(tmp_path / "run"))
    assert done.returncode == 0 and done.stdout.splitlines()[-1] == "[]", done.stdout[-500:] + done.stderr[-2000:]


def test_without_extras_commands_say_what_to_install() -> None:
    done = python(HIDE + "from steadyspike_command import main; main()", EXTRAS, "train", "tiny")
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr == "error: the command line needs the package typer: pip install 'steadyspike[train]'\n"


def test_a_single_missing_package_is_named(tmp_path: Path) -> None:
    code = HIDE + "from steadyspike_command import main; main()"
    done = python(code, "tensorboard", "train", "tiny", "--out", str(tmp_path / "run"))
    assert done.returncode == 1
    assert done.stderr == "error: this command needs the package tensorboard: pip install 'steadyspike[train]'\n"


def test_without_extras_doctor_works() -> None:
    done = python(HIDE + "from steadyspike_command import main; main()", EXTRAS, "doctor")
    assert done.returncode == 0, done.stderr
    assert "pip install 'steadyspike[train]'" in done.stdout and "kernels\n" in done.stdout and "digits" in done.stdout


def test_without_extras_the_package_itself_runs_as_the_command() -> None:
    code = HIDE + "import runpy; runpy.run_module('steadyspike', run_name='__main__')"
    done = python(code, EXTRAS, "doctor")
    assert done.returncode == 0 and "pip install 'steadyspike[train]'" in done.stdout, done.stderr
    done = python(code, EXTRAS, "train", "tiny")
    assert done.returncode == 1
    assert done.stderr == "error: the command line needs the package typer: pip install 'steadyspike[train]'\n"


def test_without_extras_load_run_says_what_to_install() -> None:
    code = "import steadyspike as ss\ntry:\n    ss.load_run('x')\nexcept ImportError as error:\n    print(error)"
    done = python(HIDE + code, EXTRAS)
    assert done.stdout == "ss.load_run needs the package pydantic: pip install 'steadyspike[train]'\n", done.stderr


def test_the_help_of_flags_names_no_type() -> None:
    """``--resume``, not ``--resume <bool>``."""
    from typer.main import get_command
    from typer.testing import CliRunner

    from steadyspike.cli import app

    names = list(get_command(app).commands)  # type: ignore[attr-defined]
    texts = {name: CliRunner().invoke(app, [name, "--help"], env={"COLUMNS": "200"}).output for name in names}
    texts["steadyspike"] = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "200"}).output
    assert "--resume" in texts["train"] and len(texts) > 15
    for name, text in texts.items():
        assert not re.search(r"<bool>|\bBOOL(EAN)?\b", text), name
