"""The paper as commands: every table and figure, from the runs it needs to the page it prints."""
