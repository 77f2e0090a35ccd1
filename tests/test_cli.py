"""The command line, mostly in this process; once in its own, with signals."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

import steadyspike
from steadyspike.cli import app
from steadyspike.commands import analyse
from steadyspike.train.files.folder import RunFolder
from steadyspike.train.run.evaluation import Evaluation

SHORT = ["--set", "schedule.epochs=1"]


def call(*arguments):
    return CliRunner().invoke(app, [str(a) for a in arguments])


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cli") / "run"
    return folder, call("train", "tiny", *SHORT, "--out", folder)


def test_commands_are_pinned():
    assert {c.name for c in app.registered_commands} == {
        "train", "evaluate", "recipes", "doctor", "fold", "export", "energy", "predict", "reproduce", "runs", "show",
        "compare", "report", "analyse", "zoo", "plan", "benchmark",
    }  # fmt: skip
    assert [g.name for g in app.registered_groups] == ["data", "gpu"]


def test_analyse_gives_a_number_per_layer_and_a_verdict(run, tmp_path):
    folder, _ = run
    for location in (folder, folder / "checkpoints" / "last.ckpt"):
        result = CliRunner().invoke(app, ["analyse", str(location), "--samples", "64", "--timesteps", "4"])
        assert result.exit_code == 0, result.output
        assert "stem.lif" in result.output and "mean shift" in result.output and "64 samples" in result.output
    figure = tmp_path / "shift.svg"
    assert CliRunner().invoke(app, ["analyse", str(folder), "--samples", "32", "--figure", str(figure)]).exit_code == 0
    assert figure.exists()
    broken = tmp_path / "checkpoints" / "last.ckpt"
    broken.parent.mkdir()
    broken.write_bytes(b"no checkpoint")
    missing = CliRunner().invoke(app, ["analyse", str(broken)])
    assert missing.exit_code == 1 and "is not a run folder" in missing.output


def test_analyse_says_now_and_then_how_far_it_is(run, monkeypatch):
    """With its output in a file it was silent for minutes where the windows are long."""
    arguments = ("analyse", run[0], "--samples", 60, "--timesteps", 64)
    quick = call(*arguments)
    monkeypatch.setattr(analyse, "_SELDOM", 0.0)
    long = call(*arguments)
    assert (quick.exit_code, long.exit_code) == (0, 0), long.output
    lines = long.output.splitlines()
    assert [line.partition(", about ")[0] for line in lines[:3]] == [f"{n} of 60 samples" for n in (16, 32, 48)]
    assert all(line.endswith(" s left") for line in lines[:3]) and lines[3:] == quick.output.splitlines()


def test_the_help_of_record_names_where_it_writes():
    for command in ("train", "reproduce"):
        assert "results" in call(command, "--help").output, command


def test_help_is_light():
    code = (
        "import sys; from steadyspike.cli import app; "
        "bad = {'lightning', 'pydantic', 'matplotlib', 'sklearn', 'tensorboard'} & set(sys.modules); "
        "print(sorted(bad))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stdout + done.stderr


def test_training_shows_epochs_and_ends_with_the_accuracy(run):
    folder, result = run
    assert result.exit_code == 0, result.output
    for text in (
        "digits: 10 classes",
        "parameters",
        "must be free",
        "test accuracy after 1..2 time steps",
        str(folder),
    ):
        assert text in result.output


def test_a_folder_in_use_is_not_overwritten_and_an_ended_run_not_repeated(run):
    folder, _ = run
    refused = call("train", "tiny", *SHORT, "--out", folder)
    assert refused.exit_code == 1 and "contains a run already; continue it with --resume" in refused.output
    again = call("train", "tiny", *SHORT, "--out", folder, "--resume")
    assert again.exit_code == 0 and "this run has ended already" in again.output
    other = call("train", "tiny", "--set", "data.timesteps=3", "--out", folder, "--resume")
    assert other.exit_code == 1 and "cannot be resumed with this recipe: data.timesteps is 3, was 2" in other.output


def test_evaluate_reproduces_and_warns_about_another_split(run):
    folder, _ = run
    result = call("evaluate", folder)
    assert result.exit_code == 0 and "equal to what the run logged" in result.output
    part = call("evaluate", folder, "--part", "validation")
    assert part.exit_code == 0 and "equal to what the run logged" in part.output
    part = call("evaluate", folder, "--part", "train")
    assert part.exit_code == 0 and "the run logged no train accuracy of these weights" in part.output
    other = call("evaluate", folder, "--split", "random:7")
    assert other.exit_code == 0 and "another split" in other.output and "may have been trained on" in other.output
    assert call("evaluate", folder.parent).exit_code == 1


def test_a_loss_that_another_processor_rounds_differently_is_not_a_failure(run, tmp_path):
    """Zoo networks are evaluated on other machines than those that trained them."""
    for change, code, text in ((1e-7, 0, "scores equal to what the run logged"), (1e-3, 1, "NOT what the run logged")):
        folder = RunFolder(shutil.copytree(run[0], tmp_path / str(change)))
        result = folder.read_json("result.json")
        result["test"]["loss"] *= 1 + change
        folder.write_json("result.json", result)
        evaluated = call("evaluate", folder.root)
        assert evaluated.exit_code == code and text in evaluated.output


def test_scores_are_equal_if_the_listed_digits_are():
    """An average precision depends on the order of scores; another processor changes its last digits."""

    class Scores:
        def record(self):
            return {"loss": 2.0, "accuracy": [50.0, 75.43], "yolo_AP": 0.41004}

    for logged, equal in (({"yolo_AP": 0.4100401}, True), ({"yolo_AP": 0.4101}, False), ({"yolo_AP": None}, False)):
        assert Evaluation(Scores(), {"loss": 2.0, **logged}, True, None).rounds is equal
    for accuracy in ([50.0, 75.42], [75.43], [50.01, 75.43]):  # one sample of 10,000 is a difference
        assert not Evaluation(Scores(), {"loss": 2.0, "accuracy": accuracy}, True, None).rounds


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["train", "nothing-like-it"], "error: there is no recipe nothing-like-it"),
        (["train", "tiny", "--set", "neuron.treshold=1"], "error: tiny: unknown key neuron.treshold"),
        (["train", "tiny", "--set", "neuron.name=foo"], "error: tiny: neuron.name = 'foo' is not valid"),
        (["train", "cifar10-resnet19-t2", "--data-dir", "/no/such/folder"], "error: /no/such/folder: is not a folder"),
        (["train", "tiny", "--set", "data.train_samples=5000"], "error: tiny: data.train_samples = 5000 is more than"),
        (["train", "tiny", "--resume"], "there is no run in runs/tiny to resume"),
    ],
)
def test_errors_are_one_line(arguments, text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = call(*arguments)
    assert result.exit_code == 1
    assert text in result.output and len(result.output.strip().splitlines()) == 1
    assert not list(tmp_path.glob("runs/*"))


def names_in(output):
    return [line.split()[0] for line in output.splitlines() if line[:1].isalpha() and "-" in line.split()[0]]


def test_recipes_are_listed_with_the_papers_number():
    result = call("recipes", "cifar100-resnet19-t4")
    assert result.exit_code == 0 and "77.66" in result.output
    nothing = call("recipes", "nothing-like-it", "--where", "table 2")
    assert nothing.exit_code == 1
    assert "no recipe with 'nothing-like-it' in its name or description at 'table 2' in the paper" in nothing.output


def test_recipes_by_several_words_and_by_place():
    actual = names_in(call("recipes", "t4", "cifar100", "TEBN").output)
    assert actual == ["cifar100-resnet19-t4-tebn", "cifar100-resnet19-t4-tebn-mp", "cifar100-resnet19-t4-tebn-original"]
    ablation = names_in(call("recipes", "--where", "table 2").output)
    assert "cifar100-resnet19-t4-trsg" in ablation and "cifar10-resnet19-t4" not in ablation
    assert len(names_in(call("recipes", "--where", "figure 9").output)) == 36


def test_a_large_grid_is_one_line_until_it_is_asked_for():
    short = call("recipes").output
    assert "frozen-as-hard-v0.1 ... (30)" in short and "frozen-as-soft-v0.5" not in short
    assert "frozen-as-soft-v0.5" in call("recipes", "--all").output
    assert len(names_in(call("recipes", "frozen", "stress").output)) == 0
    assert "frozen-as-soft-v0.5" in call("recipes", "frozen-").output
    assert "imagenet-sdt-8-384-t4-original" in names_in(call("recipes", "transformers", "imagenet").output)


def test_the_list_fits_eighty_columns(monkeypatch):
    from rich.console import Console

    from steadyspike.commands import recipes

    with open(os.devnull, "w") as nowhere:
        screen = Console(width=80, force_terminal=True, record=True, file=nowhere, highlight=False)
        monkeypatch.setattr(recipes, "console", screen)
        assert recipes.run([], "", True, True) == 0
    lines = [line.rstrip() for line in screen.export_text().splitlines()]
    assert max(len(line) for line in lines) <= 80 and not any("…" in line for line in lines)


def test_a_recipe_is_shown_as_toml_with_the_meaning_of_every_key():
    from steadyspike.train.recipe import load_recipe, parse, toml

    result = call("recipes", "--show", "frozen-as-hard-v0.1", "--set", "train.seed=5")
    assert result.exit_code == 0
    assert parse(toml.loads(result.output)) == load_recipe("frozen-as-hard-v0.1", ["train.seed=5"])
    assert re.search(r"^threshold = 0.1 +# The firing threshold V at the start of", result.output, re.M)
    assert re.search(r"^# tau: left out +# The membrane time constant", result.output, re.M)


def test_the_page_of_all_keys_is_up_to_date():
    from steadyspike.commands.shared.recipe_keys import keys, tables

    page = Path(__file__).parent.parent / "docs" / "recipe-keys.md"
    assert call("recipes", "--keys").output == page.read_text(), "run: steadyspike recipes --keys > docs/recipe-keys.md"
    assert all(key.meaning for table in tables() for key in keys(table))


def test_the_version_and_the_module():
    import steadyspike

    assert call("--version").output == f"steadyspike {steadyspike.__version__}\n"
    done = subprocess.run([sys.executable, "-m", "steadyspike", "--version"], capture_output=True, text=True)
    assert done.stdout == f"steadyspike {steadyspike.__version__}\n"


def test_doctor_says_what_there_is_and_fails_for_what_cannot_run():
    result = call("doctor")
    assert result.exit_code == 0
    for text in ("versions", "torch", "kernels", "reference", "digits", "embedded"):
        assert text in result.output
    assert call("doctor", "--recipe", "tiny", "--backend", "reference").exit_code == 0
    bad = call("doctor", "--recipe", "tiny", "--devices", "4096", "--backend", "nonsense")
    assert bad.exit_code == 1 and "unknown backend 'nonsense'" in bad.output and "4096 devices" in bad.output


def test_doctor_fails_for_a_data_folder_that_is_not_there(tmp_path):
    bad = call("doctor", "--data-dir", tmp_path / "nowhere")
    assert bad.exit_code == 1 and f"cannot run: {tmp_path / 'nowhere'}: is not a folder" in bad.output
    good = call("doctor", "--data-dir", tmp_path)
    assert good.exit_code == 0 and "everything that you asked for can run here" in good.output


def test_a_batch_that_the_processes_cannot_share_is_refused_before_there_is_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    bad = call("train", "tiny", "--devices", "2", "--set", "data.batch_size=33")
    assert bad.exit_code == 1 and not list(tmp_path.iterdir())
    assert "data.batch_size = 33 must be a multiple of 2 processes x train.accumulate = 1" in bad.output


def test_the_data_commands_are_mounted():
    result = call("data", "list")
    assert result.exit_code == 0 and "digits-events" in result.output


def start(out, *extra):
    command = [
        sys.executable,
        "-m",
        "steadyspike.cli",
        "train",
        "tiny",
        "--set",
        "schedule.epochs=400",
        "--out",
        str(out),
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen([*command, *extra], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def wait_for(path, lines, process):
    while not path.exists() or path.read_bytes().count(b"\n") < lines:
        assert process.poll() is None, process.stdout.read().decode()
        time.sleep(0.02)


def test_a_signal_saves_and_exits_with_its_code(tmp_path):
    process = start(tmp_path / "run")
    wait_for(tmp_path / "run" / "metrics.csv", 3, process)
    process.send_signal(signal.SIGTERM)
    text = process.communicate(timeout=60)[0].decode()
    assert process.returncode == 143, text
    assert "stopped by SIGTERM" in text and "Traceback" not in text
    from steadyspike.train.files.checkpoint import read_checkpoint

    assert read_checkpoint(tmp_path / "run" / "checkpoints" / "last.ckpt")["step"] >= 10


@pytest.mark.parametrize("limit", [500, 40_000])
def test_a_disk_that_takes_no_more_is_one_line(tmp_path, limit):
    """The recipe cannot be written; the first checkpoint cannot be."""
    import resource

    process = subprocess.run(
        [sys.executable, "-m", "steadyspike.cli", "train", "tiny", "--out", str(tmp_path / "run")],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
        capture_output=True,
        text=True,
    )
    file = "recipe.toml" if limit == 500 else "checkpoints/last.ckpt"
    assert process.returncode == 1
    assert process.stderr == (
        f"error: {tmp_path / 'run' / file} could not be written: it would be larger than a file of this process may be "
        "(ulimit -f)\n"
    )


def test_a_figure_that_a_disk_does_not_take_is_named(tmp_path):
    import resource

    process = subprocess.run(
        [sys.executable, "-m", "steadyspike.cli", "reproduce", "windows", "--scale", "mini", "--out", str(tmp_path)],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (8_000, 8_000)),
        capture_output=True,
        text=True,
    )
    assert process.returncode == 1 and (tmp_path / "windows-mini" / "page.md").is_file()
    assert process.stderr.startswith(f"error: {tmp_path / 'windows-mini'}/") and process.stderr.count("\n") == 1
    assert ".png could not be written: it would be larger" in process.stderr
    assert [path.name for path in (tmp_path / "windows-mini").iterdir()] == ["page.md"]  # no part of a figure


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path):
    (tmp_path / "file").touch()
    result = call("train", "tiny", "--out", tmp_path / "file" / "run")
    assert result.exit_code == 1 and result.output == f"error: {tmp_path / 'file' / 'run'}: Not a directory\n"


@pytest.mark.slow
def test_two_processes_by_the_command_line(tmp_path):
    """Killed, resumed, stopped by ctrl-C; and one of the two dying takes the other along."""
    process = start(tmp_path / "run", "--devices", "2", "--set", "train.save_every=1")
    wait_for(tmp_path / "run" / "metrics.csv", 3, process)
    process.kill()
    process.communicate()
    process = start(tmp_path / "run", "--devices", "2", "--set", "train.save_every=1", "--resume")
    wait_for(tmp_path / "run" / "metrics.csv", 12, process)
    process.send_signal(signal.SIGINT)
    text = process.communicate(timeout=60)[0].decode()
    assert process.returncode == 130 and "continuing at epoch" in text and "stopped by SIGINT" in text, text
    process = start(tmp_path / "run", "--devices", "2", "--set", "train.save_every=1", "--resume")
    wait_for(tmp_path / "run" / "metrics.csv", 15, process)
    children = subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True).stdout.split()
    os.kill(int(children[-1]), signal.SIGKILL)
    text = process.communicate(timeout=60)[0].decode()
    assert process.returncode == 1 and "process 1 of 2 died (killed by signal 9)" in text, text


@pytest.mark.slow
def test_two_processes_that_are_stopped_before_they_have_begun_or_twice(tmp_path):
    process = start(tmp_path / "run", "--devices", "2")
    while not list((tmp_path / "run").glob("logs/*/attempt_0/1/stderr.log")):
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    text = process.communicate(timeout=60)[0].decode()
    assert process.returncode == 143 and "stopped by SIGTERM before the first step" in text, text
    process = start(tmp_path / "run", "--devices", "2", "--resume")
    wait_for(tmp_path / "run" / "metrics.csv", 3, process)
    process.send_signal(signal.SIGINT)
    time.sleep(0.01)  # two at once would be one
    process.send_signal(signal.SIGINT)
    text = process.communicate(timeout=60)[0].decode()
    assert process.returncode == 130 and "Traceback" not in text, text
    deadline = time.monotonic() + 30  # the kernel ends processes with their parent, in a moment
    while (left := subprocess.run(["pgrep", "-f", str(tmp_path)], capture_output=True).stdout) and (
        time.monotonic() < deadline
    ):
        time.sleep(0.05)
    assert not left


@pytest.mark.slow
def test_torchrun(tmp_path):
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [*torchrun, "-m", "steadyspike.cli", "train", "tiny", "--out", str(tmp_path / "run")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 x cpu" in done.stdout and (tmp_path / "run" / "result.json").exists()
    weights = (tmp_path / "run" / "weights.safetensors").read_bytes()
    again = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert again.returncode != 0 and "contains a run already" in again.stdout + again.stderr
    resumed = subprocess.run([*command, "--resume"], env=environment, capture_output=True, text=True)
    assert resumed.returncode == 0 and "ended already" in resumed.stdout, resumed.stdout + resumed.stderr
    assert (tmp_path / "run" / "weights.safetensors").read_bytes() == weights


def test_bf16_that_would_kill_the_process_is_refused(monkeypatch):
    """A processor that announces what it cannot do: the trial process dies, the command prints one line."""
    from steadyspike.train.recipe import RecipeError, load_recipe
    from steadyspike.train.run import accelerator
    from steadyspike.train.run.accelerator import accelerator_of

    recipe = load_recipe("tiny", ["train.precision=bf16", "train.accelerator=cpu"])
    accelerator.bf16_problem.cache_clear()
    assert accelerator_of(recipe) == "cpu"  # tests/conftest.py keeps oneDNN away from AMX
    monkeypatch.setattr(accelerator, "_PROBE", "import os; os.kill(os.getpid(), 4)")
    accelerator.bf16_problem.cache_clear()
    with pytest.raises(RecipeError, match=r"train\.precision = 'bf16'.*AVX512_CORE_BF16"):
        accelerator_of(recipe)
    accelerator.bf16_problem.cache_clear()


def test_an_interrupt_during_the_imports_is_quiet(tmp_path):
    slow = "import os, signal, time; os.kill(os.getpid(), signal.SIGINT); time.sleep(9)"
    (tmp_path / "typer.py").write_text(slow)
    sources = Path(steadyspike.__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-c", "import steadyspike_command; steadyspike_command.main()", "recipes"],
        env=os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{sources}"}, capture_output=True, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # a background job ignores it
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (128 + signal.SIGINT, "", "")


def test_the_list_of_recipes_cuts_no_name_and_no_number():
    done = subprocess.run([sys.executable, "-m", "steadyspike.cli", "recipes"], capture_output=True, text=True)
    assert "95.05 ± 0.15" in done.stdout and "imagenet-sew-resnet34-t4-imp-lts-original" in done.stdout
    assert "…" not in done.stdout


def test_plan_predicts_a_recipe_on_a_card():
    result = call("plan", "tiny", "--card", "3090", "--samples", 1000)
    assert result.exit_code == 0 and "1 x 3090" in result.output and "epochs of 1,000 samples" in result.output
    wrong = call("plan", "tiny", "--card", "4070")
    assert wrong.exit_code == 2 and "4090" in wrong.output


def test_energy_with_memory_and_neurobench(run):
    pytest.importorskip("neurobench", reason="NeuroBench is not installed (requirements-peers.txt)")
    folder, _ = run
    energy = call("energy", folder, "--samples", 8, "--memory")
    assert energy.exit_code == 0 and "crossing" in energy.output
    own = call("benchmark", folder, "--samples", 8)
    assert own.exit_code == 0 and "NeuroBench's own numbers" in own.output and "activation" in own.output
    measured = call("benchmark", folder, "--neurobench", "--samples", 8)
    assert measured.exit_code == 0 and "NeuroBench" in measured.output and "8 test samples" in measured.output


def test_doctor_names_the_limits_of_a_platform():
    from steadyspike.commands.shared.diagnosis import platform_limit

    assert platform_limit("linux", "x86_64") is None
    for system, machine in (("win32", "AMD64"), ("darwin", "arm64"), ("linux", "aarch64")):
        limit = platform_limit(system, machine)
        assert limit is not None and "kernels" in limit
