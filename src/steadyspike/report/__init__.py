"""What a run shows to people: the HTML report, and what the terminal prints about one run, some runs, all runs."""
