"""Convolution and linear layers whose input is spikes: they add up the weights of the neurons that fired."""
