"""Figures of the paper: arrays in, a matplotlib Figure out. Nothing is shown, and pyplot's state is not touched."""
