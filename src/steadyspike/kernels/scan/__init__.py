"""The LIF scan: one entry point, `lif_scan`, and its implementations for the CPU (C++) and the GPU (Triton)."""

from steadyspike.kernels.scan.call import lif_scan

__all__ = ["lif_scan"]
