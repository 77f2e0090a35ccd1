"""What an experiment works with: its runs at a scale, the store of results, tables and pages."""
