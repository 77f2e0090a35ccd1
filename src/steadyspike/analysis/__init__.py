"""Tools for a user's own network: does its membrane shift over time (`analyse`), and what does it need on a GPU."""

from steadyspike.analysis.networks.shift import LayerShift, ShiftReport, analyse

__all__ = ["LayerShift", "ShiftReport", "analyse"]


def __dir__() -> list[str]:
    return sorted(__all__)
