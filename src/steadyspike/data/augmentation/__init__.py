"""Augmentation of training batches, as batched torch operations that draw every number from a given generator."""
