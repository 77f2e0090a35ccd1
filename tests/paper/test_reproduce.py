"""`steadyspike reproduce`: its runs, its store, its tables, and the command from training to page."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from steadyspike.cli import app
from steadyspike.paper.experiments import comparisons, networks
from steadyspike.paper.registry import EXPERIMENTS, find
from steadyspike.paper.work import page, scales
from steadyspike.paper.work.planned_run import Run
from steadyspike.paper.work.store import Result, Store, read_arrays, scores_of
from steadyspike.paper.work.work import Case, Work
from steadyspike.train.build.dry_run import check_recipe
from steadyspike.train.files.folder import RunFolder
from steadyspike.train.recipe import RecipeError, load_recipe
from steadyspike.train.recipe.recipe_catalogue import packaged
from tests.report.made import rewritten


def result(*accuracy, status="finished"):
    return Result(Run("demo"), None, status, list(accuracy))


def test_a_run_is_known_by_what_decides_its_result():
    key = Run("demo").key()
    assert key == Run("demo").key()
    assert key == Run("demo", ("train.log_every=7",)).key()
    assert len({key, Run("demo", seed=1).key(), Run("demo", ("neuron.tau=3.0",)).key()}) == 3


def test_recipes_that_say_the_same_in_different_words_are_one_run():
    """`energy` and `trainable` trained V and tau with TrSG twice; one of them writes `learn` out."""
    same = (
        ("cifar100-resnet19-t4-trsg", "learn-both", "sg-rect-trsg-soft-v1.0-tau2.0"),
        ("cifar100-resnet19-t4-tdbn", "frozen-as-soft-v1.0"),
        ("learn-none", "frozen-trsg-soft-v1.0"),
    )
    keys = [{Run(name).key() for name in names} for names in same]
    assert [len(one) for one in keys] == [1, 1, 1] and len(set.union(*keys)) == 3
    for setting in ("threshold=1.00001", "init=0.5", "backend='reference'", "surrogate='triangle'", "detach='spike'"):
        given = ("neuron.reset='soft'", f"neuron.{setting}")
        assert Run("tiny", given[:1]).key() == Run("tiny").key() != Run("tiny", given).key(), setting


def test_every_case_has_a_recipe():
    names = packaged()
    for experiment in EXPERIMENTS.values():
        for scale in experiment.scales:
            for case in experiment.cases(scale):
                if scale == "mini" and not case.own:
                    assert case.paper in names, (experiment.name, case)
                assert scales.Scale(scale).recipe(case.paper, case.deep, case.own)[0] in names, (experiment.name, case)
                assert not (case.own and scale == "paper"), experiment.name


MODELS = {}
for _experiment in EXPERIMENTS.values():
    for _case in (case for case in _experiment.cases("mini") if "mini" in _experiment.scales and not case.own):
        MODELS.setdefault(_case.paper.rpartition("-v")[0] or _case.paper, _case.paper)


def test_mini_runs_of_every_network_can_be_built():
    seen = set()
    for name in MODELS.values():
        recipe = load_recipe(name)
        if (recipe.model.name, recipe.data.name) not in seen:
            seen.add((recipe.model.name, recipe.data.name))
            check_recipe(load_recipe(*scales.Scale("mini").recipe(name, "")))
    assert ("resnet19", "cifar100") in seen


PAPER = scales.Scale("paper")
OWN = ("depth", "optimizers", "norm-scale", "length", "gain")


@pytest.mark.parametrize("name", OWN)
def test_mini_runs_of_what_the_paper_does_not_have_differ_as_the_deep_ones_do(name):
    """Every name of the list has a mini scale, and no two of its rows are made the same by being made small."""
    work, deep = (Work(scales.Scale(scale), 1, Store(Path("nowhere"))) for scale in ("mini", "deep"))
    runs = [work.runs(case)[0].load() for case in EXPERIMENTS[name].cases("mini")]
    large = [deep.runs(case)[0].load() for case in EXPERIMENTS[name].cases("deep")]
    assert len({run.key() for run in work.all_runs(EXPERIMENTS[name].cases("mini"))}) == len(runs) == len(large)
    for small, big in zip(runs, large, strict=True):
        assert small.data.name == "digits-events" and small.model.width < big.model.width
        one, other = (r.neuron.model_copy(update={"threshold": r.neuron.threshold or 1.0}) for r in (small, big))
        assert (one, small.norm, small.optimizer) == (other, big.norm, big.optimizer)
        assert small.schedule.epochs * scales.DEEP_EPOCHS == big.schedule.epochs * scales.MINI_EPOCHS
        assert small.model.options.get("layers") == big.model.options.get("layers") or name == "norm-scale"
    check_recipe(runs[0])


def test_every_name_has_a_mini_scale():
    assert [name for name, experiment in EXPERIMENTS.items() if "mini" not in experiment.scales] == []


def test_headings_say_how_long_the_longer_training_is():
    for scale, epochs in (("mini", 40), ("deep", 32)):
        work = Work(scales.Scale(scale), 1, Store(Path("nowhere")))
        page = EXPERIMENTS["length"].page(work)
        longer = [run.load().schedule.epochs for case in EXPERIMENTS["length"].cases(scale) for run in work.runs(case)]
        assert max(longer) == epochs and f"{epochs} epochs" in page.tables[-1].title


@pytest.mark.parametrize(
    ("name", "data", "headings"),
    [
        ("ablation", "", ["mini: digits (paper: CIFAR-100)", "mini: digits-events (paper: DVS-CIFAR10)"]),
        ("mp-init-norms", "cifar10", ["mini: cifar10 (paper: CIFAR-100)", "mini: digits-events (paper: DVS-CIFAR10)"]),
        ("comparison", "", [f"mini: digits, T = {t} (paper: CIFAR-10, ResNet-19, T = {t})" for t in (2, 4)]),
        ("transformers", "", ["mini: digits-events, T = 6 (paper: DVS-CIFAR10, T = 10)",
                              "mini: digits-events, T = 4 (paper: ImageNet, T = 4)"]),
        ("qkformer-gradients", "", ["mini: digits-events, T = 4 (paper: ImageNet, T = 4)"]),
        ("detection", "", ["mini: shapes, T = 2 (paper: COCO, T = 3)"]),
    ],
)  # fmt: skip
def test_headings_of_mini_tables_name_the_data_that_were_used(name, data, headings):
    """They named the paper's data sets over numbers of the embedded digits."""
    small, large = (Work(scale, 1, Store(Path("nowhere"))) for scale in (scales.Scale("mini", data), PAPER))
    assert [table.title for table in EXPERIMENTS[name].page(small).tables] == headings
    assert not any("mini" in table.title for table in EXPERIMENTS[name].page(large).tables)


def test_mini_takes_another_data_set_for_the_cases_of_its_kind():
    for given, still, events in (("", "digits", "digits-events"), ("cifar10", "cifar10", "digits-events"),
                                 ("nmnist", "digits", "nmnist")):  # fmt: skip
        cases = EXPERIMENTS["ablation"].cases("mini")
        actual = [load_recipe(*scales.Scale("mini", given).recipe(case.paper, "")) for case in cases]
        for recipe in actual:
            check_recipe(recipe)
        assert [recipe.data.name for recipe in actual] == [still] * 4 + [events] * 4


@pytest.mark.parametrize("name", ["transformers", "qkformer-gradients"])
def test_mini_transformers_can_be_built(name):
    for case in EXPERIMENTS[name].cases("mini"):
        recipe = load_recipe(*scales.Scale("mini").recipe(case.paper, ""))
        check_recipe(recipe)
        assert recipe.model.name.endswith("_tiny") and recipe.neuron == load_recipe(case.paper).neuron


def test_mini_detectors_differ_in_the_neuron_only():
    plain, ours = (
        load_recipe(*scales.Scale("mini").recipe(case.paper, "")) for case in EXPERIMENTS["detection"].cases("mini")
    )
    check_recipe(plain)
    assert (plain.neuron.name, plain.neuron.strict) == ("lif-ms", True)
    assert ours == load_recipe("detect-demo") and plain.data == ours.data and plain.data.name == "shapes"


def test_runs_go_seed_by_seed():
    experiment = EXPERIMENTS["two-steps"]
    work = Work(scales.Scale("mini"), 2, Store(None))
    assert [run.seed for run in work.all_runs(experiment.cases("mini"))] == [0, 0, 1, 1]


def test_experiments_are_found_by_place_too():
    assert find("table-2").name == "ablation" and find("table 8").name == "gradient-metrics"
    with pytest.raises(RecipeError, match="did you mean ablation"):
        find("ablatoin")
    with pytest.raises(RecipeError, match="no deep form"):
        scales.Scale("deep").recipe("demo", "")


def test_a_row_hides_no_run():
    assert page.measured([]) == "not run"
    assert page.measured([result(50.0, 60.0)]) == "60.00 (1 seed)"
    assert page.measured([result(50.0, 60.0), result(50.0, 62.0)], 0) == "50.00 ± 0.00 (2 seeds)"
    mixed = page.measured([result(60.0), result(10.0, status="diverged")])
    assert mixed == "60.00 (1 seed); 1 diverged"
    assert page.measured([result(10.0, status="diverged")]) == "1 diverged"


def test_a_detector_s_numbers_are_its_mean_precisions():
    assert scores_of({"accuracy": [1.0, 2.0]}) == [1.0, 2.0]
    assert scores_of({"metric": "COCO", "AP": 0.147, "AP50": 0.305}) == [0.147, 0.305]
    shown = EXPERIMENTS["detection"].page(Work(scales.Scale("paper"), 1, Store(Path("nowhere"))))
    assert [row[1] for row in shown.tables[0].rows] == ["0.291", "0.305"]


def test_claims_say_how_sure_they_are():
    assert page.verdict([70.0, 71.0, 72.0], [60.0, 61.0, 62.0]) == "held (+10.00)"
    assert page.verdict([60.0, 61.0], [70.0, 71.0]) == "did not hold (-10.00)"
    assert "within two standard errors" in page.verdict([60.0, 64.0], [60.0, 62.0])
    assert "no spread known" in page.verdict([60.0], [50.0])
    assert page.verdict([50.0], [50.0]).startswith("did not hold: equal (+0.00")
    assert page.verdict([], [50.0]) == "not measured yet"
    table = page.Table("t", ["a", "b"], [["1", "22"]], ["x: held"])
    assert "| 1 | 22 |" in table.markdown() and "- x: held" in table.markdown() and "x: held" in table.text()


def test_measurements_are_made_once_and_a_damaged_file_is_made_again(tmp_path):
    store, calls = Store(tmp_path), []

    def compute():
        calls.append(1)
        return {"a": np.array([1.0, 2.0])}

    for _ in range(2):
        assert store.kept("one", compute)["a"].tolist() == [1.0, 2.0]
    assert len(calls) == 1
    path = tmp_path / "measured" / "one.npz"
    whole = path.read_bytes()
    for location in range(len(whole) - 60):  # in the content; behind it are the mark and the checksum
        path.write_bytes(whole[:location] + bytes([whole[location] ^ 1]) + whole[location + 1 :])
        assert read_arrays(path) is None, location
    path.write_bytes(b"PK\x03\x04 broken")
    assert read_arrays(path) is None
    store.kept("one", compute)
    assert len(calls) == 2


def test_measurements_under_another_s_name_are_made_again(tmp_path):
    store = Store(tmp_path)
    for name in ("one", "two"):
        store.kept(name, lambda name=name: {"a": np.array([len(name), name == "one"])})
    one, two = (tmp_path / "measured" / f"{name}.npz" for name in ("one", "two"))
    shutil.copy(two, one)
    assert read_arrays(one) is None and read_arrays(two)["a"].tolist() == [3, 0]
    assert store.kept("one", lambda: {"a": np.array([7])})["a"].tolist() == [7]


@pytest.fixture(scope="module")
def quick():
    """Runs of a few steps."""
    patch = pytest.MonkeyPatch()
    mini, few = scales.mini, ("data.train_samples=64", "schedule.epochs=1")
    patch.setattr(scales, "mini", lambda recipe, data="": (*mini(recipe, data), *few))
    yield
    patch.undo()


@pytest.fixture(scope="module")
def trained(quick, tmp_path_factory):
    """The folder of two runs, with and without MP-Init, and what the command that made them said."""
    out = tmp_path_factory.mktemp("reproduced")
    return out, CliRunner().invoke(app, ["reproduce", "firing-rate", "--seeds", "1", "--out", str(out)])


def test_a_figure_from_training_to_page_and_then_at_once(trained):
    out, first = trained
    assert first.exit_code == 0, first.output
    for text in ("2 runs to train", "[2/2]", "test accuracy (%) after each step", "(figure 6)"):
        assert text in first.output
    second = CliRunner().invoke(app, ["reproduce", "figure-6", "--seeds", "1", "--out", str(out)])
    assert second.exit_code == 0 and "runs to train" not in second.output
    assert first.output.split("Firing rate of chosen")[1] == second.output.split("Firing rate of chosen")[1]
    assert {path.suffix for path in (out / "firing-rate-mini").iterdir()} == {".md", ".png", ".pdf"}


def test_measuring_is_announced_and_done_once(trained):
    out, _ = trained
    printed = []
    work = Work(scales.Scale("mini"), 1, Store(out), announce=printed.append)
    for _ in range(2):
        EXPERIMENTS["predictions"].page(work)  # on what firing-rate measured
        work.measure(work.results(EXPERIMENTS["predictions"].cases("mini")[0])[0], "mine", lambda run: {})
    assert len(printed) == 1 and printed[0].startswith("measuring resnet19_tiny on digits, T = 4 (for cifar")


def test_a_partial_table_shows_what_is_there(trained):
    out, _ = trained
    shown = CliRunner().invoke(app, ["reproduce", "ablation", "--seeds", "1", "--out", str(out), "--show"])
    assert shown.exit_code == 0, shown.output
    rows = {line.split("  ")[0]: line for line in shown.output.splitlines()}
    assert "76.09 ± 0.04" in rows["MP-Init"] or "77.37" in rows["MP-Init"]
    assert "(1 seed)" in shown.output and "not run" in shown.output
    assert "MP-Init above neither: " in shown.output and "both above neither: not measured yet" in shown.output
    assert "not measured yet" in shown.output and "| both | 77.66" in (out / "ablation-mini" / "page.md").read_text()


def test_the_numbers_of_a_folder_that_was_renamed_are_not_believed(trained, tmp_path):
    """Two folders with exchanged names gave each row the other's accuracy, and the verdict turned round."""
    out, _ = trained
    shutil.copytree(out / "runs", tmp_path / "runs")
    work = Work(scales.Scale("mini"), 1, Store(tmp_path))
    runs = [work.runs(case)[0] for case in EXPERIMENTS["firing-rate"].cases("mini")]
    assert work.store.missing(runs) == []
    one, two = (work.store.folder(run).root for run in runs)
    one.rename(tmp_path / "aside")
    two.rename(one)
    (tmp_path / "aside").rename(two)
    assert work.store.missing(runs) == runs
    again = CliRunner().invoke(app, ["reproduce", "firing-rate", "--seeds", "1", "--out", str(tmp_path)])
    assert again.exit_code == 1 and "cannot be resumed with this recipe: neuron.init" in again.output


def test_a_run_is_found_by_another_recipe_s_name_and_by_the_key_of_an_earlier_version(trained, tmp_path):
    out, _ = trained
    shutil.copytree(out / "runs", tmp_path / "runs")
    work = Work(scales.Scale("mini"), 1, Store(tmp_path))
    own, other = (Case("", name) for name in ("cifar100-resnet19-t4-tdbn", "frozen-as-soft-v1.0"))
    folder = work.first(own).folder
    assert work.first(other).folder == folder
    folder = folder.rename(folder.with_name("cifar100-resnet19-t4-tdbn-seed0-01234567"))
    assert work.first(own).folder == folder and work.first(other) is None


def test_the_report_of_a_run_that_diverged_says_so(trained, tmp_path):
    out, _ = trained
    run = RunFolder(shutil.copytree(next((out / "runs").iterdir()), tmp_path / "run"))
    sound = CliRunner().invoke(app, ["analyse", str(run.root), "--samples", "16"])
    rewritten(run, "result.json", status="diverged", message="the loss is nan")
    broken = CliRunner().invoke(app, ["analyse", str(run.root), "--samples", "16"])
    assert (sound.exit_code, broken.exit_code) == (0, 0), broken.output
    assert "did not finish" not in sound.output
    assert broken.output.startswith("this run did not finish its training (diverged): the loss is nan\n")


def test_scores_that_are_nan_predict_no_class(trained, monkeypatch):
    """They were counted as class 0."""
    out, _ = trained
    work = Work(scales.Scale("mini"), 1, Store(out))
    actual = networks.arrays_of(work, networks.pair("mini"), "steps-1", networks.steps_of)
    actual["with MP-Init"]["logits"][0] = np.nan
    monkeypatch.setattr(networks, "arrays_of", lambda *_: actual)
    page = networks.predictions(work)
    assert page.tables[0].rows[1][1].startswith("0.00 ") and not page.tables[0].rows[0][1].startswith("0.00 ")
    (note,) = page.notes
    assert note.startswith("with MP-Init: NaN") and "per step: 1.00 0.00" in note


WITH_FIGURES = ("activation", "assumption", "convergence", "gradient-cosine", "membrane", "pca", "predictions")
WITHOUT = ("comparison", "energy", "final-values", "frozen-v", "rate-accuracy-mp", "surrogates", "trainable")


@pytest.mark.parametrize("name", [*WITH_FIGURES, *WITHOUT])
def test_pages_are_made_of_what_is_there(trained, name):
    out, _ = trained
    made = EXPERIMENTS[name].page(Work(scales.Scale("mini"), 1, Store(out)))
    assert made.tables and all(len(row) == len(table.head) for table in made.tables for row in table.rows)
    assert bool(made.figures) == (name in WITH_FIGURES), list(made.figures)
    assert made.text() and made.markdown().startswith("# ")


def test_the_energy_table_says_whether_the_papers_order_held(tmp_path, monkeypatch):
    """Table 13: 1.03, 1.01, 1.13 and 1.12 G additions."""
    work = Work(scales.Scale("mini"), 1, Store(tmp_path))
    runs = {case.label: work.runs(case)[0] for case in comparisons.energy_cases("mini")}
    counted = {runs["neither"]: 5e4, runs["MP-Init"]: 4e4, runs["TrSG"]: 7e4, runs["both"]: 8e4}
    monkeypatch.setattr(Store, "result", lambda self, run: Result(run, tmp_path, "finished", [counted[run] / 1e3]))
    arrays = {"energy": np.ones(2)}
    measured = lambda self, result, *_: {**arrays, "counts": np.full(3, counted[result.run])}  # noqa: E731
    monkeypatch.setattr(Work, "measure", measured)
    (table,) = comparisons.energy(work).tables
    verdicts = [claim.partition(": ")[2] for claim in table.claims]
    assert [text.partition(",")[0] for text in verdicts] == [
        "held (+10.00",
        "held (+20.00",
        "did not hold (-10.00",
        "held (+30.00",
    ]


def test_wrong_questions_are_one_line():
    for arguments, text in (
        (["reproduce", "nothing"], "there is no table or figure"),
        (["reproduce", "depth", "--scale", "paper"], "has no scale 'paper'"),
        (["reproduce", "ablation", "--scale", "paper", "--data", "cifar10"], "--data belongs to --scale mini"),
    ):
        done = CliRunner().invoke(app, arguments)
        assert done.exit_code == 1 and text in done.output
    assert "gradient-metrics" in CliRunner().invoke(app, ["reproduce", "--list"]).output


def test_stationarity_is_shown_for_images_and_for_events():
    recipes = [case.paper for case in EXPERIMENTS["convergence"].cases("mini")]
    assert [load_recipe(name).data.name for name in recipes] == ["cifar100", "cifar100", "dvs-cifar10", "dvs-cifar10"]
    assert [load_recipe(name).neuron.init for name in recipes] == ["zero", "mp", "zero", "mp"]
    assert [case.deep for case in EXPERIMENTS["assumption"].cases("deep")] == ["deep-resnet19-neither-sgd"]


def test_a_run_is_named_after_what_is_trained():
    assert Run("demo", ("neuron.tau=3.0",), seed=2).label == "demo, seed 2"
    small = Run("cifar100-resnet19-t4-tdbn", ("data.name=digits", "model.name=cnn7"))
    assert small.label == "cnn7 on digits, T = 4 (for cifar100-resnet19-t4-tdbn), seed 0"
