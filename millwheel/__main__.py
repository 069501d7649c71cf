"""``python -m millwheel``."""

import sys

from millwheel.cli.parser import main

if __name__ == "__main__":
    sys.exit(main())
