"""An ordinary network is trained by a recipe, and its weights start a spiking one."""

from __future__ import annotations

import csv

import pytest
import torch
from typer.testing import CliRunner

import steadyspike as ss
from steadyspike.cli import app
from steadyspike.deploy.errors import CannotFold
from steadyspike.nn.neuron import neurons
from steadyspike.train.run.loading import load_run

ORDINARY = ("neuron.name=relu", "optimizer.name=muon", "train.events=false", "data.timesteps=1", "norm.threshold=1.0")


def command(*arguments: str) -> str:
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == 0, result.output
    return result.output


@pytest.fixture(scope="module")
def ordinary(tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.mktemp("runs") / "ordinary"
    settings = [part for setting in ORDINARY for part in ("--set", setting)]
    return folder, command("train", "tiny", "--out", str(folder), *settings)


def test_no_layer_is_called_silent(ordinary) -> None:
    folder, output = ordinary
    assert "never fires" not in output and "silent" not in output
    net = load_run(folder).model
    x = torch.rand(2, 1, 16, 16)
    outputs = []
    handles = [
        layer.register_forward_hook(lambda m, i, out: outputs.append(out.detach())) for layer in neurons(net).values()
    ]
    net.eval()(x)
    assert outputs and all(float(out.min()) == 0 and len(out.unique()) > 10 for out in outputs)
    for handle in handles:
        handle.remove()


def test_a_spiking_network_starts_with_its_weights(ordinary, tmp_path) -> None:
    output = command("train", "tiny", "--out", str(tmp_path / "spiking"), "--from", str(ordinary[0]))
    assert "new" in output and "running_mean" in output
    first, second = (load_run(folder).model for folder in (ordinary[0], tmp_path / "spiking"))
    weights = dict(first.named_parameters())
    spiking = dict(second.named_parameters())
    assert {name for name in spiking if name not in weights} == {n for n in spiking if n.endswith((".k", ".w"))}
    for name in ("evaluate", "report"):
        command(name, str(ordinary[0]))
    result = CliRunner().invoke(app, ["analyse", str(ordinary[0])])
    assert result.exit_code == 1 and "this network has no spiking neurons" in result.output


def test_a_fixed_threshold_is_that_of_the_recipe(ordinary, tmp_path) -> None:
    folder = str(tmp_path / "spiking")
    fixed = ("--set", "neuron.learn=[]", "--set", "neuron.threshold=0.5")
    command("train", "tiny", "--out", folder, "--from", str(ordinary[0]), *fixed)
    layers = list(neurons(load_run(folder).model).values())
    assert [(float(layer.threshold), float(1 / layer.leak)) for layer in layers] == [(0.5, 2.0)] * len(layers)


def test_tables_of_layers_have_no_threshold(ordinary) -> None:
    with (ordinary[0] / "layers.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert rows and all(row["threshold"] == row["tau"] == "" and row["gradient"] for row in rows)


def test_it_cannot_be_folded_and_the_error_has_the_reason(ordinary) -> None:
    net = load_run(ordinary[0]).model.eval()
    with pytest.raises(CannotFold, match=r"an ordinary network .* train a spiking network"):
        ss.deploy.fold(net, torch.rand(2, 1, 16, 16))


def test_options_of_other_neurons_are_not_offered(tmp_path) -> None:
    settings = ["--set", "neuron.name=relu", "--set", "neuron.threshold=0.5"]
    result = CliRunner().invoke(app, ["train", "tiny", "--out", str(tmp_path / "run"), *settings])
    assert result.exit_code == 1 and result.output.rstrip().endswith("has no such option; valid: backend")


@pytest.mark.parametrize("term", ["sparsity", "rmp"])
def test_a_loss_term_on_spikes_is_refused_before_a_folder_is_made(term: str, tmp_path) -> None:
    settings = ["--set", "neuron.name=relu", "--set", f"loss.terms.{term}.weight=0.1"]
    result = CliRunner().invoke(app, ["train", "tiny", "--out", str(tmp_path / "run"), *settings])
    assert result.exit_code == 1 and "has neither spikes nor a potential" in result.output
    assert not (tmp_path / "run").exists()


def test_an_entry_needs_a_packaged_recipe(ordinary) -> None:
    result = CliRunner().invoke(app, ["zoo", "--add", str(ordinary[0])])
    assert result.exit_code == 1 and "src/steadyspike/recipes" in result.output and "--recipe" not in result.output
