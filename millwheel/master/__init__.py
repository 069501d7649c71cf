"""The driver (7.1): plans, journals, runs, commits and recovers epochs."""
