"""What goes wrong is named by layer, recorded, and ends the run as the recipe demands."""

import pytest
import torch

from steadyspike.train.files.checkpoint import read_checkpoint
from steadyspike.train.files.tables import read_table
from tests.train.conftest import trained


def findings(folder):
    return read_table(folder.root / "health.csv")


def test_the_relative_gradient_at_a_tiny_threshold_ends_as_diverged(tmp_path):
    """The paper's stress test in small: RS-SG is worse than a guess, TrSG with the same settings is not."""
    stress = [
        "neuron.threshold=0.1", "neuron.learn=[]", "optimizer.lr=0.5", "schedule.epochs=4",
        "health.worse_than_chance=stop_keep_last_good",
    ]  # fmt: skip
    folder, result = trained(tmp_path / "rs", [*stress, "neuron.gradient=rs"])
    assert result["status"] == folder.read_json("result.json")["status"] == "diverged"
    assert "for 3 epochs the loss has been above 2.303" in result["message"]
    assert [row["kind"] for row in findings(folder)] == ["worse_than_chance"]
    _, result = trained(tmp_path / "trsg", [*stress, "neuron.gradient=trsg"])
    assert result["status"] == "finished"


def test_weights_that_overflow_end_as_diverged_with_the_last_good_ones(tmp_path):
    folder, result = trained(tmp_path, ["optimizer.lr=1e30"])
    assert result["status"] == "diverged" and result["layer"] is not None
    assert result["layer"] in findings(folder)[0]["message"]
    last = read_checkpoint(folder.last)
    assert all(value.isfinite().all() for value in last["state_dict"].values())
    assert result["weights"] == "last checkpoint (epoch 0)"
    assert result["test"]["loss"] is not None


def test_a_membrane_that_is_not_finite_is_named_and_statistics_are_put_back(tmp_path):
    from steadyspike.train.build.data import RunData
    from steadyspike.train.files.folder import RunFolder
    from steadyspike.train.recipe import load_recipe
    from steadyspike.train.run.health_policy import first_bad_layer
    from steadyspike.train.state.session import Session

    recipe = load_recipe("tiny")
    session = Session.new(recipe, RunFolder(tmp_path), RunData(recipe))
    model = session.task.model.train()
    with torch.no_grad():
        model.get_submodule("body.2.conv_norm.conv").weight[0, 0, 0, 0] = float("nan")
    before = {name: b.clone() for name, b in model.named_buffers()}
    batch = next(iter(session.data.train_loader))
    layer, what = first_bad_layer(session, batch)
    assert layer == "body.2.lif" and "input current is not finite at time step 1, 2" in what
    assert all(torch.equal(b, before[name]) for name, b in model.named_buffers())
    session.watch.close()


def test_a_silent_layer_is_named(tmp_path):
    folder, result = trained(tmp_path, ["neuron.threshold=50.0", "neuron.learn=[]", "health.silent_layer=stop"])
    assert result["status"] == "silent" and result["layer"] == "stem.lif"
    assert result["weights"] == "at the end"
    assert "'stem.lif' never fires" in findings(folder)[0]["message"]


@pytest.mark.parametrize(
    ("settings", "kind"),
    [
        (["health.min_threshold=5.0"], "collapsed_threshold"),
        (["health.max_gradient=1e-6"], "exploding_gradient"),
    ],
)
def test_warnings_let_the_run_finish(tmp_path, settings, kind):
    folder, result = trained(tmp_path, [*settings, "schedule.epochs=2"])
    assert result["status"] == "finished"
    rows = [row for row in findings(folder) if row["kind"] != "silent_in_evaluation"]
    assert {row["kind"] for row in rows} == {kind} and {row["epoch"] for row in rows} == {"1", "2"}
    assert all(row["layer"] and row["layer"] in row["message"] for row in rows)


def test_a_healthy_run_finds_nothing(tmp_path):
    assert findings(trained(tmp_path, ["neuron.threshold=0.1"])[0]) == []


def test_layers_that_are_silent_in_evaluation_alone_are_named(finished):
    """The tiny recipe: after 15 steps the running statistics of its norms do not fit, and the result is chance."""
    rows = [(row["epoch"], row["layer"]) for row in read_table(finished.root / "layers.csv") if row["rate"] == "0.0"]
    assert rows and [(row["epoch"], row["layer"]) for row in findings(finished)] == rows
    assert {row["kind"] for row in findings(finished)} == {"silent_in_evaluation"}
    assert "fires in training but not once in evaluation" in findings(finished)[0]["message"]
