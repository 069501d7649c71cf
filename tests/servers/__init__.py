"""Servers that tests start for themselves, on loopback, and stop by process id."""
