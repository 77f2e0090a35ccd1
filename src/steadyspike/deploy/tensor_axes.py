"""The axes of time and batch in a tensor while a model is traced.

Models may fold time into the batch and unfold it again. The tracer uses sizes T and B by which a tensor's shape shows
its axes; the graph itself then has only shapes of one sample.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Size

# The number of axes before the sample's own, and whether they include time.
LEADING = {"frames": 2, "folded": 1, "still": 1, "still1": 2}


class Layout(NamedTuple):
    """and B of the trace.

    Layouts: ``frames`` [T, B, ...], ``folded`` [T*B, ...], ``still`` [B, ...], ``still1`` [1, B, ...].
    """

    steps: int
    batch: int

    def of_view(self, shape: Size, timed: bool) -> str | None:
        """Returns the layout of a reshaped value, from its leading sizes; None if time and batch are not in front."""
        if not timed:
            if len(shape) > 1 and shape[0] == 1 and shape[1] == self.batch:
                return "still1"
            return "still" if len(shape) > 0 and shape[0] == self.batch else None
        if len(shape) > 1 and (shape[0], shape[1]) == (self.steps, self.batch):
            return "frames"
        return "folded" if len(shape) > 0 and shape[0] == self.steps * self.batch else None


def choose_batch(steps: int) -> int:
    """Returns a batch size for the trace that differs from T and T*B."""
    return next(b for b in (2, 3) if b != steps)


def is_timed(layout: str) -> bool:
    return layout in ("frames", "folded")


def sample_shape(shape: Size, layout: str) -> tuple[int, ...]:
    return tuple(shape[LEADING[layout] :])
