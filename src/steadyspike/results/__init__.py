"""Numbers that this library reached: JSON files, their form, and how a run is added."""
