"""Statistics of spiking networks as pure functions: tensors in, tensors out."""
