"""The scan in Triton."""
