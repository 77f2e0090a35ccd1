"""The data sets, one per file: `load(folders, ...)` reads it, `find(folders)` returns the path that would be read."""
