"""The private parts of Lightning and torch that training needs, all in one place.

Each function has a test in tests/train/test_internals.py that fails when a new version changes what it relies on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor

_STAGES = ("ready", "started", "processed", "completed")


def without_signal_handlers(trainer: Trainer) -> Trainer:
    """``trainer`` without Lightning's own signal handlers, which would talk to other processes from inside a signal."""
    trainer._signal_connector.register_signal_handlers = lambda: None  # type: ignore[method-assign]
    return trainer


def accumulates(trainer: Trainer) -> bool:
    """Whether the batch that just ended was accumulated, without an optimizer step after it."""
    return bool(trainer.fit_loop._should_accumulate())


def loop_state(trainer: Trainer) -> dict[str, Any]:
    """The position of the training loop inside an epoch."""
    return dict(trainer.fit_loop.state_dict())


def set_loop_state(trainer: Trainer, state: dict[str, Any]) -> None:
    """Back to a position of `loop_state`."""
    trainer.fit_loop.load_state_dict(state)


def start_at(trainer: Trainer, epoch: int, step: int, batches: int) -> None:
    """Sets the counters of the training loop to the start of ``epoch``, after ``step`` optimizer steps.

    batches: of one epoch.
    """
    loop = trainer.fit_loop
    for counts, value in (
        (loop.epoch_progress, epoch),
        (loop.epoch_loop.batch_progress, epoch * batches),
        (loop.epoch_loop.automatic_optimization.optim_progress.optimizer.step, step),
    ):
        for name in _STAGES:
            if hasattr(counts.total, name):
                setattr(counts.total, name, value)
    for name in _STAGES:
        setattr(loop.epoch_progress.current, name, epoch)
    loop.epoch_loop._batches_that_stepped = step


def evaluate_and_end_epoch(trainer: Trainer, module: LightningModule) -> None:
    """Runs the evaluation and the end-of-epoch hooks of an epoch whose steps are all made."""
    trainer.validating = True
    trainer.fit_loop.epoch_loop.val_loop.run()
    trainer.training = True
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        callback.on_train_epoch_end(trainer, module)


def rate_of_step(trainer: Trainer, step: int) -> float:
    """The learning rate of optimizer step ``step`` (from 1); the schedule itself has already moved on."""
    schedule = trainer.lr_scheduler_configs[0].scheduler
    return float(trainer.optimizers[0].param_groups[0]["initial_lr"] * schedule.lr_lambdas[0](step - 1))  # type: ignore[union-attr]


def tensor_norms(tensors: Sequence[Tensor]) -> list[Tensor]:
    """The norm of each tensor, by one call for all of them."""
    return list(torch._foreach_norm(list(tensors))) if tensors else []


def move_towards(tensors: Sequence[Tensor], targets: Sequence[Tensor], weight: float) -> None:
    """``tensor += weight * (target - tensor)`` in place, by one call for all of them."""
    if tensors:
        torch._foreach_lerp_(list(tensors), list(targets), weight)
