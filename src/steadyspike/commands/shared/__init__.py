"""Code that several commands share, imported when they run; the commands are the files in the folder above."""
