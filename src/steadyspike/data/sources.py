"""The sources of raw batches: arrays in memory (or mapped from disk), or items decoded in worker processes.

A source opens readers; `stream(requests)` of a reader returns batches: a request is (sample indices, training or
not, seed of the epoch); the answer, in order, is the raw batch [B, ...].
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader

from steadyspike.data.errors import DataError, whole_number
from steadyspike.data.seeds import mix


class Request(NamedTuple):
    samples: Tensor
    train: bool
    seed: int


class Reader(Protocol):
    """Answers requests in order. One reader serves one loop at a time; a loader has its own."""

    def stream(self, requests: Sequence[Request]) -> Iterator[Tensor]: ...


class Source(Protocol):
    def __len__(self) -> int: ...

    def reader(self, workers: int) -> Reader: ...


class ArraySource:
    """All samples as one array [N, ...]: a uint8 tensor, or clips [N, T, 2, H, W] mapped from disk."""

    def __init__(self, data: Tensor | NDArray[Any]) -> None:
        self.data = data

    def __len__(self) -> int:
        return len(self.data)

    def batch(self, index: Tensor) -> Tensor:
        if isinstance(self.data, Tensor):
            return self.data.index_select(0, index)
        return _tensor(self.data[index.numpy()])

    def reader(self, workers: int = 0) -> ArraySource:
        whole_number("workers", workers, least=0)
        return self

    def stream(self, requests: Sequence[Request]) -> Iterator[Tensor]:
        return (self.batch(request.samples) for request in requests)


def _tensor(array: NDArray[Any]) -> Tensor:
    # Counts wider than a byte are few; int32 holds them because torch lacks operations of the unsigned type.
    wide = array.dtype in (np.uint16, np.uint32, np.uint64)
    return torch.from_numpy(np.ascontiguousarray(array.astype(np.int32) if wide else array))


class ItemSource:
    """Samples made one by one by `item(index, train, seed) -> Tensor` (picklable if workers are spawned).

    The seed of an item depends on (run seed, epoch, index) only: the number of workers changes nothing.
    """

    def __init__(self, count: int, item: Callable[[int, bool, int], Tensor]) -> None:
        self.count, self.item = count, item

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, request: tuple[int, bool, int]) -> Tensor | DataError:
        try:
            return self.item(*request)
        except DataError as error:
            return error  # raised unchanged in the main process; torch would wrap it in a worker's traceback

    def reader(self, workers: int = 0) -> ItemReader:
        whole_number("workers", workers, least=0)
        return ItemReader(self, workers)


class ItemReader:
    """Decodes the items of a source in `workers` processes, which stay alive between epochs.

    There are never more of them than cores that this process may use: further ones would only need memory.
    All loops over it share the workers' queue, so only the newest may continue: an older one would get its batches.
    collate: makes a batch of items; default: tensors of one shape are stacked.
    """

    def __init__(self, source: ItemSource, workers: int, collate: Callable[[list[Any]], Any] | None = None) -> None:
        self._newest = 0
        self._sampler = _Requests()
        workers = min(workers, usable_cores())
        self._loader: DataLoader[Tensor] = DataLoader(
            source,  # type: ignore[arg-type]
            batch_sampler=self._sampler,
            num_workers=workers,
            collate_fn=collate or _collate,
            persistent_workers=workers > 0,
            generator=torch.Generator(),  # its own generator, so that iterating does not use the global one
        )

    def stream(self, requests: Sequence[Request]) -> Iterator[Tensor]:
        self._newest += 1
        mine = self._newest
        self._sampler.requests = requests
        batches = iter(self._loader)
        for _ in requests:
            if self._newest != mine:
                raise DataError(
                    "another loop over this loader has started, so this one cannot continue: a loader serves one at "
                    "a time, make a second one"
                )
            try:
                batch = next(batches)
            except (RuntimeError, ConnectionError, EOFError, FileNotFoundError) as error:
                raise worker_ended(error) or _hand_over_failed(error, self._loader.num_workers) or error from None
            if isinstance(batch, DataError):
                try:
                    raise batch
                finally:
                    # The error's traceback holds this frame: without this the two would keep each other and the workers
                    # alive, and a later process that collects them would print errors.
                    del batch, batches
            yield batch


def worker_ended(error: BaseException) -> DataError | None:
    """A clear error if the message is that a process which decodes images was killed; None for any other error.

    torch raises it wherever the main process happens to be, so that it may also arise outside of a loader.
    """
    match = re.match(r"DataLoader worker \(pid\(?s?\)? ?([\d, ]+)\) (is killed by signal: (.*?)\.|exited)", str(error))
    if not isinstance(error, RuntimeError) or match is None:
        return None
    how = f"was killed by the system (signal {match[3]})" if match[3] else "ended unexpectedly"
    return DataError(
        f"the data worker with process id {match[1].strip()} {how}. Most likely the memory was full: use fewer workers "
        "or a smaller batch."
    )


def _hand_over_failed(error: Exception, workers: int) -> DataError | None:
    """The error in plain words if a worker ended between finishing a batch and handing its memory over; else None.

    An error of the data set itself, raised in a worker, begins with "Caught" and is not changed.
    """
    if not workers or isinstance(error, RuntimeError) or str(error).startswith("Caught "):
        return None
    return DataError(
        "a data worker ended unexpectedly while it handed over a batch. Most likely the memory was full: use fewer "
        "workers or a smaller batch."
    )


def usable_cores() -> int:
    """Number of cores that this process may use; `taskset` and containers can limit it."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class _Requests:
    """The batch sampler of `ItemReader`: hands out what `stream` put in."""

    def __init__(self) -> None:
        self.requests: Sequence[Request] = ()

    def __len__(self) -> int:
        return len(self.requests)

    def __iter__(self) -> Iterator[list[tuple[int, bool, int]]]:
        return ([(i, r.train, mix(r.seed, i)) for i in r.samples.tolist()] for r in self.requests)


def _collate(items: list[Tensor | DataError]) -> Tensor | DataError:
    tensors = []
    for item in items:
        if isinstance(item, DataError):
            return item
        tensors.append(item)
    if len({t.shape for t in tensors}) > 1:
        return DataError(f"samples of one batch differ in shape: {sorted({tuple(t.shape) for t in tensors})}.")
    return torch.stack(tensors)
