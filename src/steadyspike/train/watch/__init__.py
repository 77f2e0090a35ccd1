"""Measurements of an epoch: scores, firing of the layers, gradient norms."""
