"""The data sets, one per file: `load(place, ...)` reads it, `find(place)` says where it would be read from."""
