"""What train/internals.py takes for granted about Lightning and torch; a new version that changes it fails here."""

import signal
import warnings

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch.utils.data import DataLoader

from steadyspike.train import internals
from steadyspike.train.run.trainer import quietly


class Line(LightningModule):
    """y = w x, with four batches an epoch."""

    def __init__(self):
        super().__init__()
        self.w = torch.nn.Parameter(torch.ones(1))
        self.evaluations = 0

    def training_step(self, batch, batch_idx):
        return (self.w * batch).sum()

    def validation_step(self, batch, batch_idx):
        self.evaluations += 1

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.5)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def fitted(*callbacks, epochs=2, **options):
    trainer = Trainer(
        max_epochs=epochs, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, num_sanity_val_steps=0, callbacks=list(callbacks), **options,
    )  # fmt: skip
    module = Line()
    internals.without_signal_handlers(trainer)
    with quietly(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*your dataloader is not resumable")
        trainer.fit(module, DataLoader(torch.ones(4, 1)), DataLoader(torch.ones(2, 1)))
    return trainer, module


class At(Callback):
    """Calls ``do(trainer, module)`` in one hook, and keeps what it returns."""

    def __init__(self, hook, do):
        self.found = []
        setattr(self, hook, lambda trainer, module, *_: self.found.append(do(trainer, module)))


def test_lightning_sets_no_signal_handlers():
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    during = At("on_train_start", lambda *_: [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)])
    fitted(during, epochs=1)
    assert during.found == [before]


def test_accumulated_batches_are_known():
    seen = At("on_train_batch_end", lambda trainer, _: (internals.accumulates(trainer), trainer.global_step))
    fitted(seen, epochs=1, accumulate_grad_batches=2)
    assert seen.found == [(True, 0), (False, 1), (True, 1), (False, 2)]


def test_a_position_inside_an_epoch_is_taken_up_again():
    states = At("on_train_batch_end", lambda trainer, _: internals.loop_state(trainer))
    whole, _ = fitted(states, epochs=1)
    steps = At("on_train_batch_end", lambda trainer, _: trainer.global_step)
    restored = At("on_fit_start", lambda trainer, _: internals.set_loop_state(trainer, states.found[1]))
    again, _ = fitted(restored, steps, epochs=1)
    assert steps.found == [3, 4] and again.global_step == whole.global_step == 4


def test_training_starts_at_an_epoch():
    seen = At("on_train_batch_end", lambda trainer, _: (trainer.current_epoch, trainer.global_step))
    trainer, _ = fitted(At("on_fit_start", lambda trainer, _: internals.start_at(trainer, 2, 8, 4)), seen, epochs=3)
    assert seen.found == [(2, 9), (2, 10), (2, 11), (2, 12)] and trainer.current_epoch == 3


def test_an_epoch_is_evaluated_and_ended():
    ends = At("on_train_epoch_end", lambda trainer, _: trainer.current_epoch)
    early = At("on_train_start", internals.evaluate_and_end_epoch)
    _, module = fitted(ends, early, epochs=1)
    assert ends.found == [0, 0] and module.evaluations == 4  # once more than without it


def test_the_rate_of_a_step_is_the_one_it_was_made_with():
    used = At("on_before_optimizer_step", lambda trainer, _: trainer.optimizers[0].param_groups[0]["lr"])
    told = At("on_train_batch_end", lambda trainer, _: internals.rate_of_step(trainer, trainer.global_step))
    fitted(used, told, epochs=1)
    assert told.found == used.found == pytest.approx([0.5, 0.25, 0.5 / 3, 0.125])


def test_norms_and_moves_of_many_tensors():
    tensors = [torch.tensor([3.0, 4.0]), torch.tensor(2.0)]
    assert [float(norm) for norm in internals.tensor_norms(tensors)] == [5.0, 2.0] and internals.tensor_norms([]) == []
    internals.move_towards(tensors, [torch.zeros(2), torch.tensor(4.0)], 0.25)
    assert tensors[0].tolist() == [2.25, 3.0] and float(tensors[1]) == 2.5
    internals.move_towards([], [], 0.5)


def test_private_names_stand_in_one_file():
    """Calls of names with an underscore that belong to Lightning or torch."""
    import re
    from pathlib import Path

    train = Path(internals.__file__).parent
    private = re.compile(r"\b(?:trainer|loop|torch|schedule|optimizer|strategy)(?:\.\w+)*\._[a-z]\w*")
    found = [path for path in train.rglob("*.py") if private.search(path.read_text())]
    assert found == [train / "internals.py"]
