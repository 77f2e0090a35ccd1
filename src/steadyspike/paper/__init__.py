"""The paper: its tables and figures as commands, its theory, and code that the evidence scripts share."""
