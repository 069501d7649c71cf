"""Replays a seed of the differential test: ``python -m tests.differential SEED``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from tests.differential.comparison import Difference, run
from tests.differential.drawing import draw
from tests.differential.shrinking import command, describe, shrink


def main(arguments: Sequence[str] | None = None) -> int:
    """The command: 0 if the engine and the reference agree."""
    parser = argparse.ArgumentParser(prog="python -m tests.differential", description=__doc__)
    parser.add_argument("seed", type=int)
    parser.add_argument("--without", default="", help="parts of the case to leave out, with commas")
    parser.add_argument("--seeds", type=int, default=1, help="how many, from this one on")
    parser.add_argument("--keep", action="store_true", help="do not look for a smaller case that fails too")
    options = parser.parse_args(arguments)
    parts = [part for part in options.without.split(",") if part]
    failed = 0
    for seed in range(options.seed, options.seed + options.seeds):
        case = draw(seed).without(parts)
        try:
            run(case)
        except Difference as error:
            failed += 1
            if options.keep:
                print(f"seed {seed}: {str(error)[:300]}", flush=True)
                continue
            gone, error = shrink(draw(seed), parts, error)
            print(f"{describe(draw(seed).without(gone))}\n{error}\n{command(seed, gone)}", flush=True)
    print(f"{options.seeds} seeds, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
