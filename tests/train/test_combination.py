"""What `compose` refuses, recipes, dry runs and doctor refuse too, for the same reason."""

import pytest
from typer.testing import CliRunner

from steadyspike.cli import app
from steadyspike.nn.compose import RULES, compose
from steadyspike.train.build.dry_run import check_recipe, dry_run
from steadyspike.train.recipe import RecipeError, load_recipe

T1 = ["data.timesteps=1"]
CASES = {
    "readout": (["neuron.name=readout"], {"neuron": "readout"}),
    "rate-tebn": (["neuron.name=rate", "norm.name=tebn"], {"neuron": "rate", "norm": "tebn"}),
    "rate-tet": (["neuron.name=rate", "loss.name=tet"], {"neuron": "rate", "loss": "tet"}),
    "rate-lts": (["neuron.name=rate", "loss.name=lts"], {"neuron": "rate", "loss": "lts"}),
    "rate-guidance": (
        ["neuron.name=rate", "loss.terms.guidance.weight=1.0"],
        {"neuron": "rate", "terms": {"guidance": {"weight": 1.0}}},
    ),
    "rate-rmp": (["neuron.name=rate", "loss.terms.rmp.weight=0.1"], {"neuron": "rate", "terms": {"rmp": {}}}),
    "relu-sparsity": (
        ["neuron.name=relu", "loss.terms.sparsity.weight=0.1"],
        {"neuron": "relu", "terms": {"sparsity": {"weight": 0.1}}},
    ),
    "mpbn-rmp": (["neuron.name=mpbn", "loss.terms.rmp.weight=0.1"], {"neuron": "mpbn", "terms": {"rmp": {}}}),
    "ltmd-rmp": (["neuron.name=ltmd", "loss.terms.rmp.weight=0.1"], {"neuron": "ltmd", "terms": {"rmp": {}}}),
    "guidance-t1": (["loss.terms.guidance.weight=1.0", *T1], {"terms": {"guidance": {}}, "timesteps": 1}),
    "mps-t1": (["neuron.name=mps", *T1], {"neuron": "mps", "timesteps": 1}),
    "idle-leak-t1": (
        ["neuron.init=zero", "neuron.decay_input=false", *T1],
        {"neuron": "lif", "init": "zero", "decay_input": False, "timesteps": 1},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_the_same_reason_everywhere(case):
    settings, parts = CASES[case]
    with pytest.raises(ValueError, match="this combination cannot work") as composed:
        compose(**{"timesteps": 2, **parts})
    reasons = [rule.reason for rule in RULES if rule.reason in str(composed.value)]
    assert reasons
    recipe = load_recipe("tiny", settings)
    for ask in (check_recipe, dry_run):
        with pytest.raises(RecipeError) as refused:
            ask(recipe)
        assert all(reason in str(refused.value) for reason in reasons)


def test_doctor_and_train_refuse_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    settings = ["--set", "neuron.name=rate", "--set", "loss.name=tet"]
    doctor = CliRunner().invoke(app, ["doctor", "--recipe", "tiny", *settings])
    assert doctor.exit_code == 1 and doctor.output.count("this combination cannot work") == 1
    train = CliRunner().invoke(app, ["train", "tiny", *settings])
    assert train.exit_code == 1 and "error: tiny: this combination cannot work" in train.output
    assert not list(tmp_path.iterdir())


def test_every_rule_has_a_case_but_the_one_that_no_recipe_can_break():
    """A recipe always says timesteps."""
    texts = []
    for _, parts in CASES.values():
        with pytest.raises(ValueError) as composed:
            compose(**{"timesteps": 2, **parts})
        texts.append(str(composed.value))
    untouched = [rule.reason for rule in RULES if not any(rule.reason in text for text in texts)]
    assert untouched == ["this norm has parameters per time step: give timesteps"]
