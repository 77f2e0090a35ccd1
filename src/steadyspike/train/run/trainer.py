"""A Lightning Trainer set up for a recipe."""

from __future__ import annotations

import inspect
import logging
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.plugins.environments import LightningEnvironment, TorchElasticEnvironment
from lightning.pytorch.profilers import PassThroughProfiler
from lightning.pytorch.strategies import DDPStrategy

from steadyspike.train.callbacks.together import Together
from steadyspike.train.files.checkpoint import AtomicCheckpointIO
from steadyspike.train.internals import without_signal_handlers
from steadyspike.train.recipe import Recipe
from steadyspike.train.run.accelerator import accelerator_of

_PRECISION: dict[str, Any] = {"fp32": "32-true", "bf16": "bf16-mixed", "fp16": "16-mixed"}


_CHATTY = ("lightning.pytorch", "lightning.fabric", "pytorch_lightning", "lightning")


_NOISE = (".*LeafSpec.*", ".*isinstance.*treespec.*", ".*does not have many workers.*", ".*IterableDataset.*__len__.*")


@dataclass(frozen=True)
class Processes:
    """How many processes this run has, and where: ``devices`` on each of ``nodes``."""

    devices: int = 1
    nodes: int = 1

    @property
    def count(self) -> int:
        return self.devices * self.nodes


def _ddp() -> DDPStrategy:
    """DDP that does not broadcast rank 0's buffers at every step: norms and MP-Init synchronise themselves."""
    new = "forward_sync_buffers" in inspect.signature(torch.nn.parallel.DistributedDataParallel.__init__).parameters
    options: dict[str, Any] = {"forward_sync_buffers" if new else "broadcast_buffers": False}
    return DDPStrategy(**options)


def make_trainer(recipe: Recipe, processes: Processes, callbacks: list[Callback], evaluates: bool = True) -> Trainer:
    """A Lightning Trainer with the recipe's devices, precision, clipping and accumulation, and no default callbacks.

    evaluates: False where the split keeps no part for model selection.
    """
    many = processes.count > 1
    # Chosen here, because Lightning would otherwise take the number of tasks of a Slurm job for that of this run.
    torchrun = TorchElasticEnvironment.detect()
    trainer = Trainer(
        accelerator=accelerator_of(recipe),
        devices=processes.devices,
        num_nodes=processes.nodes,
        strategy=_ddp() if many else "auto",
        precision=_PRECISION[recipe.train.precision],
        max_epochs=recipe.schedule.epochs,
        gradient_clip_val=recipe.train.clip or None,
        accumulate_grad_batches=recipe.train.accumulate,
        check_val_every_n_epoch=recipe.train.eval_every,
        num_sanity_val_steps=0,
        limit_val_batches=None if evaluates else 0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
        callbacks=[Together(callbacks)],
        profiler=Untimed(),
        plugins=[AtomicCheckpointIO(), TorchElasticEnvironment() if torchrun else LightningEnvironment()],
    )
    return without_signal_handlers(trainer)


@contextmanager
def quietly() -> Iterator[None]:
    """Hides Lightning's messages about itself."""
    loggers = [logging.getLogger(name) for name in _CHATTY]
    levels = [logger.level for logger in loggers]
    with warnings.catch_warnings():
        for message in _NOISE:
            warnings.filterwarnings("ignore", message=message)
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels):
                logger.setLevel(level)


def leave_group() -> None:
    """Ends the process group, if there is one."""
    import torch.distributed as dist

    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()


class Untimed(PassThroughProfiler):
    """A profiler that does nothing. Lightning's own enters about a hundred contexts per step."""

    _NOTHING = nullcontext()

    def profile(self, action_name: str) -> AbstractContextManager[None]:  # type: ignore[override]
        return self._NOTHING
