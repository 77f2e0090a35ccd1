"""The paper: its tables and figures as commands, its theory, and what our evidence scripts share."""
