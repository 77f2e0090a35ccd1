"""What happens inside a network, measured on data: distributions per step, gradients, the shift report."""
