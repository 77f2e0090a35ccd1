"""Writes scalars and histograms for TensorBoard in this thread, so that a full disk is reported here."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from steadyspike.train.files.atomic import CheckpointError, why_not_written


class BinCounts(Protocol):
    """Counts of values in equal bins from low to high, with the sum of the values and of their squares."""

    @property
    def low(self) -> float: ...
    @property
    def high(self) -> float: ...
    @property
    def counts(self) -> list[float]: ...
    @property
    def total(self) -> float: ...
    @property
    def squares(self) -> float: ...


class Board:
    """One event file in ``folder``. TensorBoard then ignores older files from ``step`` on."""

    def __init__(self, folder: Path, step: int) -> None:
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.compat.proto.summary_pb2 import HistogramProto, Summary
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._event, self._summary, self._histogram = Event, Summary, HistogramProto
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / f"events.out.tfevents.{time.time_ns()}.{socket.gethostname()}.{os.getpid()}"
        self._records = RecordWriter(open(self.path, "wb"))  # noqa: SIM115
        self._write(
            Event(wall_time=time.time(), file_version="brain.Event:2"),
            Event(wall_time=time.time(), step=step, session_log=SessionLog(status=SessionLog.START)),
        )

    def add(self, prefix: str, row: Mapping[str, float | None], step: int) -> None:
        """Writes the numbers of ``row`` as prefix/name; None is left out."""
        values = [
            self._summary.Value(tag=f"{prefix}/{name}", simple_value=value)
            for name, value in row.items()
            if value is not None
        ]
        self._write(self._event(wall_time=time.time(), step=step, summary=self._summary(value=values)))

    def add_histograms(self, prefix: str, rows: Mapping[str, BinCounts], step: int) -> None:
        """Writes counts in equal bins as prefix/name, as TensorBoard draws them."""
        values = []
        for name, row in rows.items():
            width = (row.high - row.low) / len(row.counts)
            histo = self._histogram(
                min=row.low, max=row.high, num=sum(row.counts), sum=row.total, sum_squares=row.squares,
                bucket_limit=[row.low + width * (i + 1) for i in range(len(row.counts))], bucket=row.counts,
            )  # fmt: skip
            values.append(self._summary.Value(tag=f"{prefix}/{name}", histo=histo))
        self._write(self._event(wall_time=time.time(), step=step, summary=self._summary(value=values)))

    def _write(self, *events: object) -> None:
        try:
            for event in events:
                self._records.write(event.SerializeToString())  # type: ignore[attr-defined]
            self._records.flush()
        except OSError as error:
            raise CheckpointError(f"{self.path} could not be written: {why_not_written(self.path, error)}") from error

    def close(self) -> None:
        """Closes the file; everything was written when it was added."""
        with suppress(OSError):  # an error of writing was reported when it happened
            self._records.close()
