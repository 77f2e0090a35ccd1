"""Run control: start or continue a run, start its processes, conclude it, evaluate it."""
