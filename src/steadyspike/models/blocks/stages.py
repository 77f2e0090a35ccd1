"""Stages of residual blocks from a plan of (channels, blocks, stride)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from torch import nn

from steadyspike.models.parts import Parts, Shape
from steadyspike.nn.whole import whole_number

# block(parts, shape, channels, stride): a module from [T, B, *shape] to [T, B, *shape.conv(channels, stride)]
Block = Callable[[Parts, Shape, int, int], nn.Module]


def block_counts(counts: Sequence[int], stages: int, option: str = "layers") -> list[int]:
    """Checks and returns one whole number per stage, such as its number of blocks; ``option`` names it in messages."""
    if not isinstance(counts, (tuple, list)) or len(counts) != stages:
        raise ValueError(f"{option} must be {stages} numbers, one for each stage, got {counts!r}")
    return [whole_number(count, f"every number in {option}") for count in counts]


def residual_stages(
    block: Block, parts: Parts, shape: Shape, plan: Iterable[tuple[int, int, int]]
) -> tuple[nn.Sequential, Shape]:
    """The stages ``layer1``, ``layer2``, ...

    plan: (channels at width 1, number of blocks, first stride) of each stage
    """
    body = nn.Sequential()
    for i, (full, count, first_stride) in enumerate(plan, start=1):
        stage, channels = nn.Sequential(), parts.channels(full)
        for j in range(count):
            stride = first_stride if j == 0 else 1
            stage.append(block(parts, shape, channels, stride))
            shape = shape.conv(channels, stride)
        body.add_module(f"layer{i}", stage)
    return body, shape
