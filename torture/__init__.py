"""The fault test: kills, full disks, damaged and hostile files. `make torture` runs it."""
