"""The sources of raw batches: arrays in memory (or mapped from disk), or items decoded in worker processes.

A source opens readers, and `stream(requests)` of a reader yields batches. A request is (sample indices, training or
not, seed of the epoch). The answer to each request, in order, is the raw batch [B, ...].
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
    """Answers requests in order. One reader serves one loop at a time, and each loader has its own reader."""

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
    # Counts that need more than one byte are rare; they become int32, because torch lacks operations for the unsigned
    # type.
    wide = array.dtype in (np.uint16, np.uint32, np.uint64)
    return torch.from_numpy(np.ascontiguousarray(array.astype(np.int32) if wide else array))


class ItemSource:
    """Samples made one by one by `item(index, train, seed) -> Tensor` (which must be picklable if workers are spawned).

    The seed of an item depends only on (run seed, epoch, index), so the number of workers changes nothing.
    """

    def __init__(self, count: int, item: Callable[[int, bool, int], Tensor]) -> None:
        self.count, self.item = count, item

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, request: tuple[int, bool, int]) -> Tensor | DataError:
        try:
            return self.item(*request)
        except DataError as error:
            # passed on as a value and raised in the main process; torch would wrap it in a worker's traceback
            return error

    def reader(self, workers: int = 0) -> ItemReader:
        whole_number("workers", workers, least=0)
        return ItemReader(self, workers)


class ItemReader:
    """Decodes the items of a source in `workers` processes, which stay alive between epochs.

    There are never more workers than cores that this process may use, because more would only need memory. All loops
    over a reader share the workers' queue, so only the newest loop may continue; an older one would get the newer one's
    batches.

    collate: makes a batch of items; by default tensors of one shape are stacked
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
            generator=torch.Generator(),  # an own generator, so that iterating does not use the global one
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
                    # The error's traceback refers to this frame. Without this line, error and frame would keep each
                    # other and the workers alive, and a process that frees them later would print errors.
                    del batch, batches
            yield batch


def worker_ended(error: BaseException) -> DataError | None:
    """Returns a clear error if `error` reports that a worker process was killed; None for any other error.

    torch raises it at whatever line the main process has reached, so it can also occur outside of a loader.
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
    """Returns an error in plain words if a worker ended after finishing a batch but before handing it over.

    Returns None otherwise.

    An error of the data set itself that is raised in a worker begins with "Caught" and is not changed.
    """
    if not workers or isinstance(error, RuntimeError) or str(error).startswith("Caught "):
        return None
    return DataError(
        "a data worker ended unexpectedly while it handed over a batch. Most likely the memory was full: use fewer "
        "workers or a smaller batch."
    )


def usable_cores() -> int:
    """Returns the number of cores that this process may use; `taskset` and containers can limit it."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class _Requests:
    """The batch sampler of `ItemReader`: yields the requests that `stream` has added."""

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
        return DataError(
            f"samples of one batch differ in shape: {sorted({tuple(t.shape) for t in tensors})}; give all of them one "
            "shape, such as by a transform that resizes or crops"
        )
    return torch.stack(tensors)
