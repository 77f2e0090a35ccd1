"""Spikes as bits: a 0 or 1 per neuron and step, and one level per layer or channel."""
