"""The files of a run: folder, checkpoints, tables, weights, figure."""
