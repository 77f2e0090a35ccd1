"""`Program`: a folded network as loops over pixels and channels, for one sample at one time step.

A buffer stores a value as [height][width][channels]. The channels of a pixel are adjacent, so that a spike adds one row
of weights to all output channels. A shape (C,) is one pixel of C channels, (C, L) a row of L pixels.

    bits      spikes, one bit each
    counts    whole numbers from 0 on: sums of spikes; ``Value.joins`` of them are one unit of the folded network
    current   float32, or integers in an integer program
    first     what an integer program computes before its first neuron, in double precision
    input     the caller's frame, float32 as [C][H][W]
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

Array = np.ndarray[Any, Any]
Kind = Literal["bits", "counts", "current", "first", "input"]
Adds = Literal["float", "int", "first", "count"]
Grid = tuple[int, int, int]  # channels, height, width
DECAY = 4096  # the unit of an integer program's decays
LIMIT = 2**30  # integer currents and potentials stay within this; inputs that would leave it are clipped to it


@dataclass(frozen=True)
class Buffer:
    """Memory of one value.

    low, high: the range of its integers (infinite for float32)
    """

    name: str
    kind: Kind
    grid: Grid
    low: float = 0.0
    high: float = 1.0

    @property
    def size(self) -> int:
        return math.prod(self.grid)


@dataclass(frozen=True)
class Value:
    """A buffer as a value of the folded network: ``index`` has the value's shape and contains positions in the buffer.

    Reshaping, permuting and slicing change the index and move no data.

    joins: see `counts` above
    """

    buffer: Buffer
    index: Array
    joins: int = 1


@dataclass(frozen=True)
class Synapse:
    """A convolution, or a linear layer as a convolution whose kernel covers the whole input.

    strides: distance between neighbours in the source, by channel, row and column
    rows: weights [kernel height * kernel width * input channels, output channels / groups]
    """

    name: str
    source: Buffer
    strides: tuple[int, int, int]
    size: Grid  # size of the input
    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]
    groups: int
    rows: Array


@dataclass(frozen=True)
class Edge:
    """Adds a value of the same grid, times a constant [1 or pixels, 1 or channels]; None: unchanged."""

    source: Buffer
    weight: Array | None


@dataclass(frozen=True)
class Neurons:
    """LIF constants [1, 1 or channels]; ``start`` may differ by pixel. In integer programs all are whole numbers.

    limit: the largest absolute value that U can have
    potential: the name of U's memory
    """

    potential: str
    threshold: Array
    keep: Array  # 1 - a; integer programs: times `DECAY`
    gain: Array
    start: Array
    reset: str
    strict: bool
    emit: str
    limit: float


@dataclass(frozen=True)
class Layer:
    """Adds up terms for every pixel, and stores the sum or charges neurons with it.

    constant: [1 or pixels, channels], the sum before any term
    by_step: gain and bias [steps, channels] that are applied after the terms
    adds: the arithmetic of the sum
    rescale: an integer program rounds the sum of ``first`` arithmetic times this number
    """

    name: str
    out: Buffer
    terms: tuple[Synapse | Edge, ...]
    constant: Array
    adds: Adds
    gain: Array | None = None
    bias: Array | None = None
    rescale: float | None = None
    relu: bool = False
    neurons: Neurons | None = None
    low: float = -math.inf  # range of the sum
    high: float = math.inf


@dataclass(frozen=True)
class Pool:
    """Sum or maximum of windows; a maximum of bits is their OR.

    factor: for averages of real numbers
    """

    name: str
    source: Buffer
    out: Buffer
    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]
    takes: Literal["sum", "max"]
    factor: float = 1.0


@dataclass(frozen=True)
class Strided:
    """The positions of a pass through a buffer: ``base + sum(stride * position)``."""

    buffer: Buffer
    base: int
    strides: tuple[int, ...]


@dataclass(frozen=True)
class Combine:
    """For every position in ``sizes``: the product of the operands, summed over the last ``reduced`` axes.

    It covers copies (one operand), products of spikes, attention's matrix products, and ``1 - x`` (complement).
    """

    name: str
    out: Strided
    operands: tuple[Strided, ...]
    sizes: tuple[int, ...]
    reduced: int = 0
    complement: bool = False
    factor: float = 1.0


Operation = Layer | Pool | Combine


@dataclass
class Program:
    """The operations of a folded network.

    still: run once per image
    each_step: run at every time step
    output: scores [classes], times ``output_scale``
    limit: the largest number of time steps (constants per step), None for any number
    facts: of `input_facts` (commands)
    """

    name: str
    integer: bool
    shape: tuple[int, ...]
    takes_frames: bool
    timesteps: int
    limit: int | None
    still: list[Operation]
    each_step: list[Operation]
    output: Buffer
    output_scale: float
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def layers(self) -> list[Layer]:
        """Returns layers of neurons in the order in which they run."""
        return [op for op in (*self.still, *self.each_step) if isinstance(op, Layer) and op.neurons is not None]


def grid_of(shape: tuple[int, ...]) -> Grid:
    """Returns channels, height and width of a sample's shape."""
    if len(shape) == 3:
        return shape[0], shape[1], shape[2]
    return (shape[0] if shape else 1), 1, math.prod(shape[1:])


def natural_index(shape: tuple[int, ...]) -> Array:
    """Returns the positions of a value that is stored as [pixels][channels]."""
    channels, pixels = (shape[0] if shape else 1), math.prod(shape[1:])
    places = np.arange(channels * pixels).reshape(pixels, channels).T
    return places.reshape(shape)


def strides_of(index: Array) -> tuple[int, tuple[int, ...]] | None:
    """Returns base and strides of an index, None if no strides describe it."""
    base = int(index.flat[0])
    strides = []
    for axis, size in enumerate(index.shape):
        strides.append(int(index.take(1, axis).flat[0]) - base if size > 1 else 0)
    walk = np.full(index.shape, base)
    for axis, stride in enumerate(strides):
        steps = np.arange(index.shape[axis]) * stride
        walk = walk + steps.reshape([-1 if a == axis else 1 for a in range(index.ndim)])
    return (base, tuple(strides)) if np.array_equal(walk, index) else None


def split_axes(indices: list[Array], axis: int) -> list[Array] | None:
    """Returns indices of one shape with an axis split in two, if strides then describe it; None if no split does that.

    Reshaping joins axes whose positions are not evenly spaced, such as heads and features of attention.
    """
    size = indices[0].shape[axis]
    for inner in range(1, size + 1):
        if size % inner == 0:
            shape = (*indices[0].shape[:axis], size // inner, inner, *indices[0].shape[axis + 1 :])
            parts = [index.reshape(shape) for index in indices]
            if all(_is_even(part, axis) and _is_even(part, axis + 1) for part in parts):
                return parts if inner not in (1, size) else indices
    return None


def _is_even(index: Array, axis: int) -> bool:
    steps = np.diff(index, axis=axis)
    return steps.size == 0 or bool((steps == steps.flat[0]).all())
