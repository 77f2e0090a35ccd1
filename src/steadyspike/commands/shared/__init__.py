"""What several commands need and import when they run; the commands are the files in the folder above."""
