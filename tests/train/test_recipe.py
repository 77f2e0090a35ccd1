"""Recipes: inheritance, overrides, one-line errors, a round trip through TOML."""

import pytest

from steadyspike.train.build.data import load_data
from steadyspike.train.build.dry_run import check_recipe
from steadyspike.train.recipe import RecipeError, dumps, load_recipe, parse, recipe_names, recipe_path, toml
from steadyspike.train.recipe.load import overrides
from steadyspike.train.recipe.toml import merge


def write(folder, name, text):
    path = folder / f"{name}.toml"
    path.write_text(text)
    return path


@pytest.mark.parametrize("name", recipe_names(bases=True))
def test_every_recipe_parses_and_survives_a_round_trip(name):
    recipe = load_recipe(name)
    assert parse(toml.loads(dumps(recipe.model_dump(exclude_none=True)))) == recipe


def test_inheritance_merges_tables_and_leaves_the_base_its_own_numbers(tmp_path):
    write(tmp_path, "a", "about = 'a'\n[data]\ntimesteps = 6\nbatch_size = 8\n[paper]\nvalue = 1.0\nwhere = 'x'\n")
    write(tmp_path, "b", "base = 'a.toml'\n[data]\ntimesteps = 2\n")
    recipe = load_recipe(write(tmp_path, "c", "base = 'b.toml'\n[train]\nseed = 3\n"))
    assert (recipe.data.timesteps, recipe.data.batch_size, recipe.train.seed) == (2, 8, 3)
    assert recipe.paper is None and recipe.about == ""


def test_a_circle_is_refused(tmp_path):
    write(tmp_path, "a", "base = 'b.toml'")
    write(tmp_path, "b", "base = 'a.toml'")
    with pytest.raises(RecipeError, match="in a circle: a -> b -> a"):
        load_recipe(tmp_path / "a.toml")


def test_another_neuron_starts_its_table_afresh():
    base = {"neuron": {"tau": 4.0, "gradient": "rs"}, "data": {"name": "cifar10", "timesteps": 4}}
    changed = merge(base, {"neuron": {"name": "plif"}, "data": {"name": "cifar100"}})
    assert changed == {"neuron": {"name": "plif"}, "data": {"name": "cifar100", "timesteps": 4}}
    assert merge(base, {"neuron": {"name": "lif", "tau": 2.0}})["neuron"]["gradient"] == "rs"


def test_empty_options_remove_those_of_the_base():
    other = ["model.name=spikingresformer_tiny"]  # which has no dropout
    assert "dropout" in load_recipe("tiny", other).model.options
    assert load_recipe("tiny", [*other, "model.options={}"]).model.options == {}
    penalty = "loss.terms.sparsity.weight=1.0"
    assert load_recipe("tiny", [penalty]).loss.terms == {"sparsity": {"weight": 1.0}}
    assert load_recipe("tiny", [penalty, "loss.terms={}"]).loss.terms == {}


def test_overrides_take_toml_values_and_fall_back_to_strings():
    settings = [
        "data.timesteps=2",
        "neuron.learn=[]",
        "model.name=cnn7",
        "model.options.dropout=0.5",
        "data.augment=false",
    ]
    assert overrides(settings) == {
        "data": {"timesteps": 2, "augment": False},
        "neuron": {"learn": []},
        "model": {"name": "cnn7", "options": {"dropout": 0.5}},
    }


def test_only_an_override_that_changes_the_configuration_drops_the_papers_number(tmp_path):
    path = write(tmp_path, "a", "[paper]\nvalue = 1.0\nwhere = 'x'\n")
    assert load_recipe(path, ["train.seed=4", "train.devices=2"]).paper is not None
    assert load_recipe(path, ["train.seed=4", "data.timesteps=2"]).paper is None


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ("neuron.treshold=1.0", "unknown key neuron.treshold (did you mean threshold?); valid: name, threshold"),
        ("foo=1", "unknown key foo; valid: about, shown, note, model"),
        ("epochs=3", "unknown key epochs (did you mean schedule.epochs?); valid: about"),
        ("timestep=3", "unknown key timestep (did you mean data.timesteps?); valid: about"),
        ("train.lr=3", "unknown key train.lr (did you mean optimizer.lr?); valid: seed"),
        ("treshold=3", "unknown key treshold (did you mean neuron.threshold or norm.threshold?)"),
        (
            "optimizer.name=sdg",
            "optimizer.name = 'sdg' is not valid; it must be one of 'sgd', 'adam', 'adamw', 'lamb' or 'muon'",
        ),
        ("data.timesteps=0", "data.timesteps = 0 is not valid; it must be greater than or equal to 1"),
        ("data.timesteps=x", "data.timesteps = 'x' is not valid; it must be a valid integer"),
        ("neuron.tau=true", "neuron.tau = True is not valid"),
        ("neuron.init=foo", "it must be one of 'mp', 'zero' or 'imp' or a valid number"),
        ("neuron=3", "neuron = 3 is not valid; it must be a table"),
        ("neuron.detach=spike", "neuron.detach needs neuron.reset"),
        ("neuron.surrogate_width=2.0", "neuron.surrogate_width needs neuron.surrogate"),
        ("schedule.name=step", "schedule.milestones is empty"),
        ("schedule.warmup=12", "schedule.warmup = 12 must be below schedule.epochs = 12"),
        ("train.accumulate=7", "data.batch_size = 64 must be a multiple of train.accumulate = 7"),
        ("loss.label_smoothing=0.1", "unknown key loss.label_smoothing; valid: name, options, terms"),
        ("nonsense", "--set 'nonsense' is not valid"),
    ],
)  # fmt: skip
def test_errors_are_one_line_that_names_the_key(setting, expected):
    with pytest.raises(RecipeError) as caught:
        load_recipe("demo", [setting])
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)


def test_missing_recipes_and_broken_files_are_named(tmp_path):
    with pytest.raises(RecipeError, match="there is no recipe demoo; did you mean demo"):
        recipe_path("demoo")
    with pytest.raises(RecipeError, match="no recipe file"):
        recipe_path(tmp_path / "x.toml")
    with pytest.raises(RecipeError, match=r"bad.toml is not TOML: .*line 1"):
        load_recipe(write(tmp_path, "bad", "a = = 3"))


@pytest.mark.parametrize("order", [1, -1])
def test_settings_hold_in_any_order(order):
    settings = ["optimizer.lr=0.5", "optimizer.name=adam", "neuron.threshold=0.5", "neuron.name=plif"]
    recipe = load_recipe("tiny", settings[::order])
    assert (recipe.optimizer.name, recipe.optimizer.lr) == ("adam", 0.5)
    assert (recipe.neuron.name, recipe.neuron.threshold) == ("plif", 0.5)


MUST = "is not valid; it must be"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["model.options={dropout='x'}"], f"model.options.dropout = 'x' {MUST} a number"),
        (["model.options={dropout=2.0}"], "model.options.dropout = 2.0: dropout probability has to be between 0 and 1"),
        (["model.options={timesteps=3}"], "model.options.timesteps cannot be set in a recipe: data.timesteps sets it"),
        (["model.options={norm='x'}"], "model.options.norm cannot be set in a recipe: norm.name sets it"),
        (["model.options={init='x'}"], "model.options.init = 'x': unknown init 'x'; known: default"),
        (["model.options={spiking_fc=1}"], f"model.options.spiking_fc = 1 {MUST} true or false"),
        (["model.name=resnet19_tiny", "model.options={layers=3}"], f"model.options.layers = 3 {MUST} a list"),
        (["model.name=resnet19_tiny", "model.options={stem=-3}"], f"model.options.stem = -3 {MUST} above 0"),
        (["model.name=resnet19_tiny", "model.options={block='x'}"], "model.options.block cannot be set in a recipe"),
        (["model.width=1e9"], "model.width = 1000000000.0 is not valid"),
        (["neuron.threshold=-1"], f"neuron.threshold = -1 {MUST} greater than 0"),
        (["neuron.options={learn=3}"], f"neuron.options.learn = 3 {MUST} a list"),
        (["neuron.options={imp_range='x'}", "neuron.init=imp"], f"neuron.options.imp_range = 'x' {MUST} a list"),
        (["neuron.threshold=0.5", "neuron.options={threshold=0.3}"], "cannot be set together with neuron.threshold"),
        (["neuron.backend=triton", "train.accelerator=cpu"], "neuron.backend = 'triton'"),
        (["loss.name=tet", "loss.options={lamb='x'}"], f"loss.options.lamb = 'x' {MUST} a number"),
        (["loss.options={label_smoothing=3.0}"], "loss.options.label_smoothing = 3.0: label_smoothing must be between"),
        (["loss.terms.sparsity={weight='a'}"], f"loss.terms.sparsity.weight = 'a' {MUST} a number"),
        (["loss.terms.sparsity={weight=-1.0}"], "loss.terms.sparsity.weight = -1.0 is not valid; it must not be below"),
        (["loss.terms.sparsity={form='x'}"], "loss.terms.sparsity.form = 'x': unknown sparsity form 'x'; known: l1"),
        (["data.options={validation='x'}"], "data.options.validation cannot be set in a recipe: data.validation sets"),
        (["data.options={canvas='abc'}"], f"data.options.canvas = 'abc' {MUST} a whole number"),
        (["data.options={canvas=0}"], f"data.options.canvas = 0 {MUST} a whole number above 0"),
        (["data.options={download=true}"], "data.options.download cannot be set in a recipe"),
        (["data.options={foo=3}"], "unknown key data.options.foo; valid: canvas, placement_seed"),
        (["data.validation=holdout:2"], f"data.validation = 'holdout:2' {MUST} 'holdout[:FRACTION[:SEED]]' with"),
        (["data.validation=holdout:0.1:x"], "data.validation = 'holdout:0.1:x' is not valid"),
        (["data.split=official"], f"data.split = 'official' {MUST} one of random:SEED"),
        (["data.size=[8]"], f"data.size = [8] {MUST} a whole number above 0, or two: [height, width]"),
        (["data.size=32"], "data.size = 32: the data set 'digits' has one size"),
        (["schedule.milestones=[-3]"], f"schedule.milestones.0 = -3 {MUST} greater than or equal to 1"),
        (
            ["schedule.milestones=[2, 2]"],
            "schedule.milestones = [2, 2] is not valid; each must be above the one before",
        ),
        (["schedule.min_lr=5.0"], "schedule.min_lr = 5.0 must not be above optimizer.lr = 0.05"),
        (["optimizer.name=adam", "optimizer.betas=[0.9, 3.0]"], "optimizer.betas.1 = 3.0 is not valid"),
        (["optimizer.name=adam", "optimizer.betas=[0.9]"], f"optimizer.betas = [0.9] {MUST} a list of 2"),
        (["optimizer.name=adam", "optimizer.momentum=0.5"], "optimizer.momentum = 0.5 belongs to sgd and muon, but"),
        (["optimizer.nesterov=true", "optimizer.momentum=0.0"], "optimizer.nesterov = true needs optimizer.momentum"),
        (["optimizer.lr=inf"], "optimizer.lr"),
        (["train.seed=99999999999999999999999"], "train.seed"),
    ],
)
def test_wrong_values_are_one_line_that_names_the_key_and_what_is_valid(settings, message):
    with pytest.raises(RecipeError) as caught:
        check_recipe(load_recipe("tiny", settings))
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_what_only_the_data_refuses_names_the_key_too():
    with pytest.raises(RecipeError, match=r"data\.options\.placement_seed = -1: placement_seed must be a whole number"):
        load_data(load_recipe("tiny", ["data.options={placement_seed=-1}"]).data)


def test_whole_numbers_do_where_a_number_is_asked_for():
    check_recipe(load_recipe("tiny", ["model.options={dropout=0}", "loss.terms.sparsity={weight=1}"]))


def test_a_missing_base_is_named_with_the_recipe_that_asked_for_it(tmp_path):
    with pytest.raises(RecipeError, match=r"a\.toml: base = 'missing\.toml': there is no recipe file missing\.toml"):
        load_recipe(write(tmp_path, "a", "base = 'missing.toml'"))
    write(tmp_path, "b", "base = 'demoo'")
    with pytest.raises(RecipeError, match=r"b\.toml: base = 'demoo': there is no recipe demoo; did you mean demo"):
        load_recipe(write(tmp_path, "c", "base = 'b.toml'"))


@pytest.mark.parametrize("name", recipe_names(bases=True))
def test_every_recipe_passes_the_check(name):
    check_recipe(load_recipe(name))


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("[train]\nseed = " + "9" * 5000, "is not TOML: Exceeds the limit"),
        ("[train]\nseed = 0x" + "f" * 5000, "train.seed = "),
        ("x = " + "[" * 5000, "is not TOML: its brackets are nested too deeply"),
        ('base = "' + "x" * 5000 + '"', "base = 'xxx"),
        ('base = "' + "x" * 5000 + '.toml"', "base = 'xxx"),
        ("\x00", "is not TOML"),
        ("[model]\nname = '" + "x" * 5000 + "'", ""),
        ("model = 3", "model = 3 is not valid; it must be a table"),
        (".".join(["a"] * 20_000) + " = 1", "a line has more than 500 dots"),
        ("x = 1 # " + "y" * (1 << 20), "1048576 are read"),
    ],
    ids=["digits", "hexadecimal", "brackets", "base", "base file", "null", "name", "type", "dots", "size"],
)
def test_a_strange_recipe_is_one_short_line(tmp_path, text, printed):
    (tmp_path / "strange.toml").write_text(text)
    with pytest.raises(RecipeError) as error:
        check_recipe(load_recipe(tmp_path / "strange.toml"))
    assert printed in str(error.value) and "\n" not in str(error.value) and "x" * 100 not in str(error.value)


@pytest.mark.parametrize("name", ["x" * 300 + ".toml", "x" * 100_000, "a\nb", "a\nb.toml", "a\0b.toml"])
def test_a_strange_name_is_one_short_line(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a\nb.toml").write_text("colour = 1")
    with pytest.raises(RecipeError) as error:
        load_recipe(name)
    assert "\n" not in str(error.value) and len(str(error.value)) < 400


def test_a_name_is_no_pattern():
    for name in ("*", "tin?", "[t]iny", "../tiny", "base/*"):
        with pytest.raises(RecipeError, match="there is no recipe"):
            load_recipe(name)


@pytest.mark.parametrize("name", ["..", "."])
def test_a_recipe_file_without_a_name_writes_nowhere_else(tmp_path, monkeypatch, name):
    from steadyspike.train.files.folder import RunError, new_folder, open_folder

    monkeypatch.chdir(tmp_path)
    for make in (new_folder, open_folder):
        with pytest.raises(RunError, match="gives no name for a run folder: give one with --out"):
            make(None, name)
    assert list(tmp_path.iterdir()) == []


def test_a_new_run_overwrites_nothing(tmp_path):
    from steadyspike.train.files.folder import RunError, new_folder

    (tmp_path / "notes").write_text("text")
    with pytest.raises(RunError, match="is a file; a run needs a folder"):
        new_folder(tmp_path / "notes", "tiny")
    (tmp_path / "metrics.csv").write_text("epoch,loss\n1,2.3\n")
    with pytest.raises(RunError, match="contains tables or weights that training would overwrite"):
        new_folder(tmp_path, "tiny")


def test_the_newest_of_a_thousand_runs_is_opened(tmp_path, monkeypatch):
    from steadyspike.train.files.folder import open_folder

    monkeypatch.chdir(tmp_path)
    for number in ("001", "999", "1000", "1000-copy", "notes"):
        (tmp_path / "runs" / "tiny" / number).mkdir(parents=True)
        (tmp_path / "runs" / "tiny" / number / "recipe.toml").touch()
    assert open_folder(None, "tiny").root.name == "1000"


def test_one_place_decides_which_keys_count():
    """The marks of the schema: what describes, where it runs, which run it is; everything else is the configuration."""
    from steadyspike.train.recipe import identity

    assert identity.PRIVATE == ("about", "shown", "note", "paper")
    assert {"train.seed", "train.eval_every", "data.eval_batch_size"} == identity.INCIDENTAL - identity.ANYWHERE
    assert {
        "train.devices", "train.accelerator", "train.save_every", "train.log_every", "train.report", "train.loggers",
        "data.workers",
    } == identity.ANYWHERE  # fmt: skip
    a, b = load_recipe("tiny"), load_recipe("tiny", ["train.seed=1", "data.workers=2"])
    assert identity.configuration(a) == identity.configuration(b) and identity.fingerprint(a) != identity.fingerprint(b)
    assert identity.difference(b, a) == "train.seed is 1, was 0"
    assert identity.fingerprint(load_recipe("tiny", ["train.start=x"])) != identity.fingerprint(a)
