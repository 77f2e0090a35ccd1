"""The parts of an experiment: its runs at a scale, the store of results, tables and pages."""
