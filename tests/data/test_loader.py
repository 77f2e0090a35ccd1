"""Loaders: reproducible, resumable at any batch, no duplicates over processes, exact evaluation."""

from __future__ import annotations

import contextlib
import gc
import os
import re
import signal
import weakref
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data._utils import signal_handling

import steadyspike.data as data_layer
from steadyspike.data.augment import Augment
from steadyspike.data.bundle import DataBundle
from steadyspike.data.dataset import DataSet
from steadyspike.data.errors import DataError
from steadyspike.data.sampler import TrainPlan, eval_batches
from steadyspike.data.sources import ArraySource, ItemSource, _hand_over_failed, worker_ended
from steadyspike.data.splits import Population, make_split


def numbered(count: int = 103, item: bool = False, clips: bool = False) -> DataBundle:
    """Every sample carries its own number in all pixels, so that a batch tells which samples it holds."""
    shape = (3, 2, 6, 6) if clips else (1, 6, 6)
    data = torch.arange(count, dtype=torch.uint8).view(-1, *(1,) * len(shape)).expand(-1, *shape).contiguous()
    source = ItemSource(count, Noisy(data)) if item else ArraySource(data.numpy() if clips else data)
    labels = np.arange(count) % 4
    dataset = DataSet(
        "numbered", source, Population([f"s{i}" for i in range(count)], labels), tuple("abcd"), shape[-3], (6, 6),
        timesteps=3 if clips else None, augment=Augment() if item else Augment(padding=1, flip=True),
    )  # fmt: skip
    return DataBundle(dataset, make_split(dataset.population, "random:0"))


class Noisy:
    """An item with randomness of its own: its number plus a fraction drawn from the item's seed."""

    def __init__(self, data: torch.Tensor) -> None:
        self.data = data

    def __call__(self, index: int, train: bool, seed: int) -> torch.Tensor:
        noise = torch.rand((), generator=torch.Generator().manual_seed(seed)) if train else torch.zeros(())
        return self.data[index].float() + noise * 0.5


class Failing:
    def __call__(self, index: int, train: bool, seed: int) -> torch.Tensor:
        raise DataError("is not an image", f"file{index}.jpg")


def everything(loader) -> list[tuple[torch.Tensor, torch.Tensor]]:  # type: ignore[no-untyped-def]
    return list(loader)


def assert_equal_batches(a, b) -> None:  # type: ignore[no-untyped-def]
    assert len(a) == len(b)
    for (x, y), (u, v) in zip(a, b):
        assert torch.equal(x, u) and torch.equal(y, v)


@settings(deadline=None, max_examples=50)
@given(
    samples=st.integers(1, 200), batch=st.integers(1, 40), world=st.integers(1, 5), epoch=st.integers(0, 3),
    drop=st.booleans(),
)  # fmt: skip
def test_training_shards_hold_no_sample_twice(samples: int, batch: int, world: int, epoch: int, drop: bool) -> None:
    try:
        plans = [TrainPlan(samples, batch, 7, rank, world, drop) for rank in range(world)]
    except DataError:
        assert samples // world < (batch if drop else 1)
        return
    seen = [torch.cat(plan.batches(epoch)) for plan in plans]
    assert len({len(s) for s in seen}) == 1, "as many batches on every process"
    together = torch.cat(seen)
    assert len(together.unique()) == len(together)
    assert len(together) >= samples - (world - 1) - (batch - 1) * world * drop
    assert all(len(plan.batches(epoch)) == plan.num_batches for plan in plans)


@settings(deadline=None, max_examples=50)
@given(samples=st.integers(0, 100), batch=st.integers(1, 30), world=st.integers(1, 6))
def test_evaluation_covers_every_sample_exactly_once(samples: int, batch: int, world: int) -> None:
    parts = [b for rank in range(world) for b in eval_batches(samples, batch, rank, world)]
    together = torch.cat(parts) if parts else torch.empty(0)
    assert sorted(together.tolist()) == list(range(samples))


@pytest.mark.parametrize("item", [False, True], ids=["array", "items"])
def test_equal_arguments_give_equal_batches_and_others_do_not(item: bool) -> None:
    bundle = numbered(item=item)
    a = everything(bundle.train_loader(16, seed=3))
    assert_equal_batches(a, everything(bundle.train_loader(16, seed=3)))
    assert not torch.equal(a[0][0], everything(bundle.train_loader(16, seed=4))[0][0])
    loader = bundle.train_loader(16, seed=3)
    loader.set_epoch(1)
    assert not torch.equal(a[0][0], next(iter(loader))[0])


@pytest.mark.parametrize(
    ("item", "clips"), [(False, False), (False, True), (True, False)], ids=["images", "clips", "items"]
)
def test_resume_in_the_middle_of_an_epoch(item: bool, clips: bool) -> None:
    """Two epochs without a break equal: five batches, a stop, a new loader with the stored state, the rest."""
    bundle = numbered(item=item, clips=clips)
    straight = bundle.train_loader(16, seed=1)
    expected = everything(straight) + everything(straight)
    assert straight.epoch == 2
    first = bundle.train_loader(16, seed=1)
    got = []
    for number, batch in enumerate(first):
        got.append(batch)
        if number == 2:
            break
    state = first.state_dict()
    assert (state["epoch"], state["batch"]) == (0, 3)
    second = bundle.train_loader(16, seed=1)
    second.load_state_dict(state)
    second.set_epoch(0)  # what a trainer does at the start of every epoch: it must not undo the resume
    got += everything(second)
    second.set_epoch(1)
    got += everything(second)
    assert_equal_batches(got, expected)


def test_state_after_the_last_batch_is_the_next_epoch() -> None:
    loader = numbered().train_loader(16)
    for _ in loader:
        state = loader.state_dict()
    assert (state["epoch"], state["batch"]) == (1, 0)


def test_restart_and_set_epoch() -> None:
    loader = numbered().train_loader(16)
    first = next(iter(loader))
    assert loader.state_dict()["batch"] == 1
    loader.restart()
    assert_equal_batches([first], [next(iter(loader))])
    loader.set_epoch(5)
    assert loader.state_dict()["batch"] == 0


def test_a_state_of_another_run_is_refused() -> None:
    bundle = numbered()
    state = bundle.train_loader(16, seed=1).state_dict()
    with pytest.raises(DataError, match="seed was 1, now it is 2"):
        bundle.train_loader(16, seed=2).load_state_dict(state)
    with pytest.raises(DataError, match="batch_size was 16"):
        bundle.train_loader(8, seed=1).load_state_dict(state)
    with pytest.raises(DataError, match="world_size"):
        bundle.train_loader(16, seed=1, world_size=2).load_state_dict(state)


def test_layouts() -> None:
    x, y = next(iter(numbered().train_loader(8)))
    assert x.shape == (8, 1, 6, 6) and x.dtype == torch.float32 and y.shape == (8,) and y.dtype == torch.int64
    x, y = next(iter(numbered(clips=True).train_loader(8)))
    assert x.shape == (3, 8, 2, 6, 6) and x.is_contiguous(), "time first"


def test_labels_belong_to_their_samples_over_two_processes() -> None:
    bundle = numbered()
    seen = []
    for rank in range(2):
        for x, y in bundle.train_loader(10, rank=rank, world_size=2):
            number = x.flatten(1).amax(1).long()
            assert torch.equal(number % 4, y)
            seen += number.tolist()
    assert len(seen) == len(set(seen)) and set(seen) <= set(bundle.split.train.tolist())


def test_evaluation_parts_are_exact_and_apart() -> None:
    bundle = numbered()
    seen: dict[str, set[int]] = {}
    for part in ("train", "validation", "test"):
        numbers = []
        for rank in range(3):
            loader = bundle.eval_loader(part, 4, rank=rank, world_size=3)
            batches = everything(loader)
            assert len(batches) == len(loader)
            assert sum(len(y) for _, y in batches) == loader.samples
            numbers += [int(n) for x, _ in batches for n in x.flatten(1).amax(1)]
        assert len(numbers) == len(set(numbers)) == len(bundle.split.part(part))
        seen[part] = set(numbers)
    assert not (seen["train"] & seen["test"] or seen["train"] & seen["validation"] or seen["test"] & seen["validation"])


def test_workers_change_nothing() -> None:
    """Items decoded in two processes, over two epochs, equal items decoded in none; global generators are untouched."""
    bundle = numbered(40, item=True)
    state = torch.get_rng_state()
    alone, helped = bundle.train_loader(8, seed=2), bundle.train_loader(8, seed=2, workers=2)
    for _ in range(2):
        assert_equal_batches(everything(alone), everything(helped))
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="the system cannot limit a process to some cores")
def test_there_are_never_more_workers_than_cores() -> None:
    """torch warns if a loader has more workers than cores, and the tests make warnings errors."""
    bundle, cores = numbered(40, item=True), os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(cores)})
        assert_equal_batches(everything(bundle.train_loader(8)), everything(bundle.train_loader(8, workers=3)))
    finally:
        os.sched_setaffinity(0, cores)


def test_evaluating_amid_training_does_not_disturb_it() -> None:
    bundle = numbered(60, item=True)
    expected = everything(bundle.train_loader(8, seed=2))
    loader, got = bundle.train_loader(8, seed=2, workers=1), []
    validation = bundle.eval_loader("validation", 4, workers=1)
    for batch in loader:
        got.append(batch)
        assert len(everything(validation)) == len(validation)
    assert_equal_batches(got, expected)


@pytest.mark.parametrize("workers", [0, 1])
def test_an_error_in_a_worker_is_one_clear_error(workers: int) -> None:
    bundle = numbered(20, item=True)
    source = bundle.dataset.source
    assert isinstance(source, ItemSource)
    source.item = Failing()
    with pytest.raises(DataError, match=r"^file\d+\.jpg: is not an image$") as caught:
        next(iter(bundle.train_loader(4, workers=workers)))
    assert caught.value.path is not None


def test_impossible_requests() -> None:
    bundle = numbered(20)
    with pytest.raises(DataError, match="drop_last=False keeps"):
        bundle.train_loader(500, drop_last=True)
    with pytest.raises(DataError, match="rank 2 of 2"):
        bundle.train_loader(4, rank=2, world_size=2)
    with pytest.raises(DataError, match="batch_size"):
        bundle.eval_loader("test", 0)
    none = DataBundle(bundle.dataset, make_split(bundle.dataset.population, "random:0", "none"))
    with pytest.raises(DataError, match="has no validation part"):
        none.eval_loader("validation", 4)
    assert none.selection_part is None and bundle.selection_part == "validation"


def test_wide_counts_survive(tmp_path: Path) -> None:
    data = np.full((4, 2, 2, 3, 3), 60_000, np.uint16)
    batch = ArraySource(data).batch(torch.tensor([1, 2]))
    assert batch.dtype == torch.int32 and int(batch.max()) == 60_000


@pytest.mark.parametrize("workers", [0, 2])
def test_only_the_newest_loop_over_a_loader_goes_on(workers: int) -> None:
    """Two loops share the workers' queue: without a stop one would get the other's images with its own labels."""
    bundle = numbered(60, item=True)
    expected = everything(bundle.train_loader(8, seed=2))
    loader = bundle.train_loader(8, seed=2, workers=workers)
    old = iter(loader)
    next(old)
    new = loader.batches(0)
    assert_equal_batches([next(new)], expected[:1])
    with pytest.raises(DataError, match="serves one at a time, make a second one"):
        next(old)
    assert_equal_batches(list(new), expected[1:])


@pytest.mark.parametrize(
    ("key", "value"), [("batch", 99), ("batch", -1), ("epoch", -1), ("epoch", None), ("batch", 1.5)]
)
def test_a_state_out_of_range_is_refused(key: str, value: object) -> None:
    loader = numbered().train_loader(16)
    with pytest.raises(DataError, match=key):
        loader.load_state_dict({**loader.state_dict(), key: value})
    assert (loader.epoch, loader.state_dict()["batch"]) == (0, 0)


@pytest.mark.parametrize("wrong", [{"seed": 1.5}, {"seed": "x"}, {"workers": -1}, {"workers": 0.5}])
@pytest.mark.parametrize("item", [False, True], ids=["array", "items"])
def test_numbers_that_are_none(wrong: dict, item: bool) -> None:
    with pytest.raises(DataError, match="whole number"):
        numbered(20, item=item).train_loader(4, **wrong)


def test_an_error_leaves_nothing_that_holds_the_workers() -> None:
    """A loader whose loop failed is freed at once; garbage left for later is collected, loudly, in a later worker."""
    bundle = numbered(20, item=True)
    bundle.dataset.source.item = Failing()  # type: ignore[attr-defined]
    loader = bundle.train_loader(4, workers=1)
    inner = weakref.ref(loader._reader._loader)  # type: ignore[attr-defined]
    gc.collect()
    gc.disable()
    try:
        with contextlib.suppress(DataError):
            next(iter(loader))
        del loader
        assert inner() is None
    finally:
        gc.enable()


class Killed:
    """A data set whose seventh item ends the process that reads it, as a system without memory does."""

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int):  # type: ignore[no-untyped-def]
        if index == 7 and torch.utils.data.get_worker_info() is not None:
            os.kill(os.getpid(), signal.SIGKILL)
        return torch.zeros(1, 2, 2), index % 2


def test_a_worker_that_the_system_kills_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch may raise its own error anywhere in the main process, so that the command line translates it too."""
    # Here it may not: it would end a later test, or the whole run. Without its handler torch sees the missing child.
    monkeypatch.setattr(signal_handling, "_set_SIGCHLD_handler", lambda: None)
    before = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    bundle = data_layer.from_dataset(Killed(), validation="none")
    try:
        with pytest.raises(DataError) as caught:
            list(bundle.train_loader(4, workers=1))
        text = str(caught.value)
        del caught  # its frames hold the loader, which forgets its workers when it goes
        gc.collect()
    finally:
        signal.signal(signal.SIGCHLD, before)
    assert re.match(r"(the data worker with process id \d+|a data worker) ended unexpectedly.* memory was full", text)
    for other in (RuntimeError("out of paper"), KeyError("DataLoader worker (pid 3) is killed by signal: Killed.")):
        assert worker_ended(other) is None
    assert "handed over a batch" in str(_hand_over_failed(ConnectionResetError(104, "Connection reset by peer"), 1))
    for error, workers in ((ConnectionResetError("Caught ConnectionResetError in DataLoader worker process 0."), 1),
                           (FileNotFoundError("a.png"), 0)):  # fmt: skip
        assert _hand_over_failed(error, workers) is None
    one = worker_ended(RuntimeError("DataLoader worker (pid 31) is killed by signal: Killed. "))
    two = worker_ended(RuntimeError("DataLoader worker (pid(s) 31, 32) exited unexpectedly"))
    assert "process id 31 was killed by the system (signal Killed)" in str(one) and "id 31, 32 ended" in str(two)
