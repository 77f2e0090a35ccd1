"""The state of a run while it runs: what its callbacks share, signals, random generators."""
