"""What the driver does (7.1): plans epochs, journals them, has them run, commits them, recovers."""
