"""File formats, one per module: each turns bytes into checked arrays or raises a DataError."""
