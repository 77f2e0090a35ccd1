"""Measured results of this library: JSON files, their form, and how a run is added."""
