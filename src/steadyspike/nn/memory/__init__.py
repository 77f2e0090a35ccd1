"""Less training memory: currents recomputed from convolution outputs, spikes kept as bits, and an estimate."""
