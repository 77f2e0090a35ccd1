"""Training with less memory: recompute input currents, keep spikes as bits, and estimate the memory of a step."""
