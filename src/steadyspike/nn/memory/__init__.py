"""Training with less memory: keep spikes as bits, keep freed memory, and estimate the memory of a step."""
