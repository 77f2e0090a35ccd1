"""Shares tries out over the machine's cores."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import TypeVar

Job = TypeVar("Job")
Result = TypeVar("Result")


def shared_out(work: Callable[[Job], Result], jobs: Iterable[Job], processes: int | None = None) -> Iterator[Result]:
    """``work(job)`` of every job, in the order of the jobs, in processes forked from this one.

    work: a function of a module, since it is sent by its name. Its processes may fork others.
    """
    fork = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(processes or cores(), fork) as pool:
        yield from pool.map(work, jobs)


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
