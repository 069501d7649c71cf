"""``python -m examples.cookbook [NAME]``: what there is, or one recipe on Spark."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

import millwheel as mw
from examples.cookbook import RECIPES, pipeline, recipe
from examples.cookbook.page import page


def main() -> int:
    """Runs what the command line asks for."""
    parser = argparse.ArgumentParser(
        prog="python -m examples.cookbook",
        description="Runs a recipe over its own input, and prints what comes out, a line of JSON each.",
        epilog="Example: python -m examples.cookbook sessions",
    )
    parser.add_argument("name", nargs="?", choices=RECIPES, metavar="NAME", help="one of the recipes")
    parser.add_argument("--page", action="store_true", help="print the page of the docs")
    arguments = parser.parse_args()
    if arguments.page:
        print(page(), end="")
    elif arguments.name is None:
        for name in RECIPES:
            print(f"{name:22}{(recipe(name).__doc__ or '').partition(chr(10))[0]}")
    else:
        sink = mw.sinks.Collect()
        with tempfile.TemporaryDirectory(prefix="cookbook-") as work:
            mw.run(pipeline(arguments.name, sink), store=Path(work) / "store", progress=False)
        for record in sink.records:
            print(json.dumps(record.value))
    return 0


if __name__ == "__main__":
    sys.exit(main())
