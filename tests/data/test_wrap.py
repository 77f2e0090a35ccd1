"""A user's own data set as a bundle: its labels are what it returns, not what its lists contain."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import steadyspike.data as data
from steadyspike.data.augment import Augment
from steadyspike.data.errors import DataError


class Floats:
    """Float images that carry their number, a list of targets, and a label changed on the way out."""

    def __init__(self, count: int, change: Callable[[int], Any], target_transform: Any = None) -> None:
        self.targets = [i % 3 for i in range(count)]
        self.change, self.target_transform = change, target_transform
        self.reads = 0

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, Any]:
        self.reads += 1
        return torch.full((1, 4, 4), float(index)), self.change(self.targets[index])


@pytest.mark.parametrize("attribute", [True, False], ids=["target_transform", "hidden"])
def test_labels_are_what_the_data_set_gives(attribute: bool) -> None:
    def change(label: int) -> int:
        return 2 - label

    bundle = data.from_dataset(Floats(60, change, change if attribute else None), validation="none")
    for x, y in bundle.train_loader(8):
        assert torch.equal(y, 2 - x[:, 0, 0, 0].long() % 3)


def test_a_list_of_targets_saves_reading_every_item() -> None:
    pool = Floats(600, int)
    data.from_dataset(pool)
    assert pool.reads < 60


def test_a_label_the_spot_check_missed_is_caught_when_read() -> None:
    class Odd(Floats):
        def __getitem__(self, index: int) -> tuple[torch.Tensor, Any]:
            image, label = super().__getitem__(index)
            return image, (label + 1) % 3 if index == 777 else label

    bundle = data.from_dataset(Odd(2000, int), validation="none")
    part = "test" if 777 in bundle.split.test else "train"
    with pytest.raises(DataError, match=r"sample 777 has label 1, but its list of targets has 0"):
        list(bundle.eval_loader(part, 100))


@pytest.mark.parametrize("label", ["cat", 0.5, None])
def test_labels_that_are_no_class_index(label: Any) -> None:
    with pytest.raises(DataError, match=r"sample 0 has label .*; a class index is expected"):
        data.from_dataset(Floats(9, lambda _: label))


@pytest.mark.parametrize(
    "wrong", [{"mean": (0.5, 0.5)}, {"mean": 0.5}, {"std": (0.0,)}, {"std": (float("nan"),)}, {"augment": {"zoom": 1}}]
)
def test_wrong_constants_are_refused(wrong: dict[str, Any]) -> None:
    class Bytes(Floats):
        def __getitem__(self, index: int) -> tuple[torch.Tensor, Any]:
            return torch.zeros((1, 4, 4), dtype=torch.uint8), index % 3

    with pytest.raises(DataError):
        data.from_dataset(Bytes(30, int), **wrong)
    assert data.from_dataset(Bytes(30, int), augment={"padding": 1}).dataset.augment == Augment(1, False)
