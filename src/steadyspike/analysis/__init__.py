"""The paper's statistics, what they say about a network, and its tables and figures as commands."""

from steadyspike.analysis.networks.shift import LayerShift, ShiftReport, analyse

__all__ = ["LayerShift", "ShiftReport", "analyse"]
