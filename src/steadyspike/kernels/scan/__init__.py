"""The LIF scan: one entry point, `lif_scan`, and what computes it on a CPU (C++) and on a GPU (Triton)."""

from steadyspike.kernels.scan.call import lif_scan

__all__ = ["lif_scan"]
