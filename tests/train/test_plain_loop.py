"""The plain loop of the documentation and the trainer are the same training."""

import importlib.util
from pathlib import Path

import torch

from steadyspike.train.files.checkpoint import read_checkpoint
from steadyspike.train.files.folder import RunFolder
from steadyspike.train.recipe import load_recipe
from steadyspike.train.run.training import train

ROOT = Path(__file__).parent.parent.parent
EXAMPLE = ROOT / "examples" / "plain_loop.py"


def test_the_plain_loop_gives_the_trainers_weights_bit_for_bit(tmp_path, capsys):
    spec = importlib.util.spec_from_file_location("plain_loop", EXAMPLE)
    plain = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(plain)
    model = plain.train("cnn7_tiny", 1 / 16, steps=2, epochs=2)
    settings = ["model.name=cnn7_tiny", "model.width=0.0625", "data.timesteps=2", "schedule.epochs=2"]
    train(load_recipe("demo", settings), RunFolder(tmp_path))
    trained = read_checkpoint(tmp_path / "checkpoints" / "last.ckpt")["state_dict"]
    assert model.state_dict().keys() == trained.keys()
    for name, value in model.state_dict().items():
        assert torch.equal(value, trained[name]), name
    assert "epoch 2: accuracy" in capsys.readouterr().out


def test_the_documentation_shows_the_example():
    text = EXAMPLE.read_text()
    loop = text[text.index("def train") : text.index("@torch.inference_mode")].strip()
    assert loop in (ROOT / "docs" / "training.md").read_text()
