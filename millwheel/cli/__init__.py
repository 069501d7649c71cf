"""The command line. `main` is what the program ``millwheel`` runs."""

from millwheel.cli.parser import main

__all__ = ["main"]
