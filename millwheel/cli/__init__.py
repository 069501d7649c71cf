"""The command line. `main` runs the program ``millwheel``."""

from millwheel.cli.parser import main

__all__ = ["main"]
