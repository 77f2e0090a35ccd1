"""The C types of values, weights and sums."""

from __future__ import annotations

from steadyspike.deploy.standalone.program import Array, Buffer, Layer, Neurons, Synapse

BYTES = {"uint8_t": 1, "uint16_t": 2, "uint32_t": 4, "int8_t": 1, "int16_t": 2, "int32_t": 4, "int64_t": 8,
         "float": 4, "double": 8}  # fmt: skip
FIRST = "first_t"  # double, unless the generated file is compiled with another type
BYTES[FIRST] = 8


def word_bits(channels: int) -> int:
    """Returns the bits of the words that hold a pixel's spikes."""
    return 8 if channels <= 8 else 16 if channels <= 16 else 32


def words(buffer: Buffer) -> int:
    """Returns the words per pixel."""
    return -(-buffer.grid[0] // word_bits(buffer.grid[0]))


def word_type(buffer: Buffer) -> str:
    return f"uint{word_bits(buffer.grid[0])}_t"


def integer_type(low: float, high: float) -> str:
    """Returns the smallest signed type that holds a range."""
    for bits in (8, 16, 32):
        if -(2 ** (bits - 1)) <= low and high < 2 ** (bits - 1):
            return f"int{bits}_t"
    return "int64_t"


def element_type(buffer: Buffer, integer: bool) -> str:
    """Returns the C type of a buffer's elements.

    bits: of its words
    """
    if buffer.kind == "bits":
        return word_type(buffer)
    if buffer.kind == "counts":
        return "uint8_t" if buffer.high < 2**8 else "uint16_t" if buffer.high < 2**16 else "uint32_t"
    if buffer.kind == "first":
        return FIRST
    if buffer.kind == "input" or not integer:
        return "float"
    return integer_type(min(buffer.low, -(2**15)), max(buffer.high, 2**15 - 1))


def potential_type(neurons: Neurons, integer: bool) -> str:
    if not integer:
        return "float"
    return "int16_t" if neurons.limit < 2**15 else "int32_t"


def weight_type(rows: Array, integer: bool) -> str:
    return integer_type(float(rows.min()), float(rows.max())) if integer else "float"


def is_whole(term: Synapse) -> bool:
    """Returns True for a linear layer: the kernel covers the whole input."""
    return term.kernel == term.size[1:] and term.padding == (0, 0)


def sum_type(layer: Layer) -> str:
    """Returns the C type in which a layer adds up: of its sum, and of its terms without the constant."""
    if layer.adds == "float":
        return "float"
    if layer.adds == "first":
        return FIRST
    if layer.adds == "count":
        return "int32_t"
    low, high = float(layer.constant.min()), float(layer.constant.max())
    return integer_type(min(layer.low, layer.low - low, -(2.0**15)), max(layer.high, layer.high - high, 2.0**15 - 1))
