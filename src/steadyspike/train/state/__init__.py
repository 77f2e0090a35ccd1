"""The state of a run while it runs: the values that its observers share, signals, random generators."""
