"""What several commands need and import when they run; the files beside this folder are the commands."""
