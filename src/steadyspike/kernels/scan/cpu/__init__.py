"""The scan in C++ (csrc/scan)."""
