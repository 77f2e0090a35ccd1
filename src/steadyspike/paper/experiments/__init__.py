"""The experiments, by theme."""
