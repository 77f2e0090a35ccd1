"""Reports of runs: the HTML report, and the terminal's output about one run, several runs and all runs."""
