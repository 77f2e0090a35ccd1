"""What an experiment works with: its runs at a scale, where results are kept, tables and pages."""
