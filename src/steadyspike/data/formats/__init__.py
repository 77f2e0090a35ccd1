"""File formats, one per file: bytes in, checked arrays or a DataError out."""
