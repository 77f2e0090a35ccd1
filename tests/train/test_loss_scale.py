"""The loss scale of fp16, on the CPU: it changes no number, and steps whose gradient overflows are skipped."""

import math
from pathlib import Path

import torch
from torch import Tensor

from steadyspike.train.build.data import RunData
from steadyspike.train.files.folder import RunFolder
from steadyspike.train.recipe import load_recipe
from steadyspike.train.run.health_policy import HealthWatch
from steadyspike.train.run.loop import Loop
from steadyspike.train.state.saving import seed_all
from steadyspike.train.state.session import Observer, Session, Step

SETTINGS = ("schedule.epochs=1", "data.train_samples=160", "train.clip=1.0", "train.accumulate=2")


def trained(root: Path, scaler: torch.amp.GradScaler | None, *settings: str) -> Session:
    recipe = load_recipe("tiny", [*SETTINGS, *settings])
    seed_all(0)
    session = Session.new(recipe, RunFolder(root), RunData(recipe))
    session.scaler = scaler or session.scaler
    seed_all(1)
    Loop(session, Observer(), HealthWatch(session)).run()
    return session


def weights(session: Session) -> dict[str, Tensor]:
    return dict(session.task.model.named_parameters())


def test_it_changes_no_number(tmp_path: Path) -> None:
    """A power of two scales every gradient exactly, and clipping sees the gradient without it."""
    plain = trained(tmp_path / "plain", None)
    scaled = trained(tmp_path / "scaled", torch.amp.GradScaler("cpu", init_scale=2.0**12))
    for name, weight in weights(plain).items():
        assert torch.equal(weight, weights(scaled)[name]), name


def test_an_overflow_skips_the_step_and_does_not_end_the_run(tmp_path: Path) -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127, backoff_factor=2.0**-40)
    session = trained(tmp_path / "run", scaler, "train.precision=fp16", "health.exploding_gradient=stop")
    assert session.steps == 5 and 0 < scaler.get_scale() < 2.0**127
    assert all(torch.isfinite(weight).all() for weight in weights(session).values())
    assert not session.warned  # neither as exploding nor as not finite


def test_an_infinite_gradient_under_fp16_is_not_called_exploding(tmp_path: Path) -> None:
    recipe = load_recipe("tiny", ["train.precision=fp16", "health.exploding_gradient=stop"])
    session = Session.new(recipe, RunFolder(tmp_path), RunData(recipe))
    session.step = Step(loss=1.0, gradient=math.inf, norms=(math.inf,) * len(session.gradients.groups))
    HealthWatch(session).before_update()
    assert not session.warned
