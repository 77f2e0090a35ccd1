"""How a layer lists the inputs of its synapses: by columns of an image, or window by window.

A convolution without steps between the windows of a row is added up row by row. It lists the inputs that are not zero
once, column by column, so that the inputs of a window's column are neighbours in the list. A band of output rows is
listed at a time, as many as `LIST_BYTES` hold. Other synapses list the window of every pixel.
"""

from __future__ import annotations

from steadyspike.deploy.standalone.c_types import BYTES, element_type, is_whole, sum_type
from steadyspike.deploy.standalone.program import Layer, Synapse

ROW_BYTES = 16384  # sums of a longer row of pixels would need too much stack
LIST_BYTES = 16384
LIST_SLACK = 8  # spikes are listed by bytes, eight entries at a time


def lead(term: Synapse) -> int:
    """Returns the pixels left of the first one that taps of the first input column reach."""
    return term.kernel[1] - 1 - term.padding[1]


def goes_by_row(layer: Layer, term: Synapse) -> bool:
    """Returns True if the inputs of a column are added to all pixels of a row that they reach."""
    return (
        term.kernel[1] > 1 and not is_whole(term) and lead(term) >= 0 and layer.constant.shape[0] == 1
        and term.groups == term.stride[1] == term.dilation[0] == term.dilation[1] == 1
        and (term.size[2] + term.kernel[1] - 1) * layer.out.grid[0] * BYTES[sum_type(layer)] <= ROW_BYTES
    )  # fmt: skip


def rows_of(layer: Layer) -> list[Synapse]:
    """Returns the synapses of a layer that are added up row by row."""
    return [term for term in layer.terms if isinstance(term, Synapse) and goes_by_row(layer, term)]


def band(layer: Layer, integer: bool) -> int:
    """Returns the number of output rows whose inputs are listed together."""
    rows = layer.out.grid[1]
    for term in rows_of(layer):
        in_list = 2 + (0 if term.source.kind == "bits" else BYTES[element_type(term.source, integer)])
        fits = LIST_BYTES // (term.size[0] * term.size[2] * in_list)
        rows = min(rows, max(1, (fits - term.kernel[0]) // term.stride[0] + 1))
    return rows


def listed_rows(layer: Layer, term: Synapse, integer: bool) -> int:
    """Returns the largest number of input rows that are listed together."""
    return min(term.size[1], (band(layer, integer) - 1) * term.stride[0] + term.kernel[0])


def lists(layer: Layer, term: Synapse, integer: bool) -> dict[str, tuple[str, int]]:
    """Returns type and size of a synapse's lists.

    list: inputs that are not zero; times: their values, if they are not bits; starts: where pixels begin in the list
    """
    most, parts = term.rows.shape[0], {}
    if goes_by_row(layer, term):
        rows = listed_rows(layer, term, integer)
        most = term.size[0] * term.size[2] * rows
        parts["starts"] = (_index(most), term.size[2] * (rows + 1))
    parts["list"] = (_index(most), most + LIST_SLACK)
    if term.source.kind != "bits":
        parts["times"] = (element_type(term.source, integer), most + LIST_SLACK)
    return parts


def _index(most: int) -> str:
    return "uint16_t" if most < 2**16 else "uint32_t"
