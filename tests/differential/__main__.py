"""Replays a seed of the differential test: ``python -m tests.differential SEED``."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence

from millwheel.store.objects.working_copy import COPIES
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
    with tempfile.TemporaryDirectory(prefix="differential-copies-") as copies:
        os.environ[COPIES] = copies
        failed = sum(_fails(seed, parts, keep=options.keep) for seed in _seeds(options))
    print(f"{options.seeds} seeds, {failed} failed")
    return 1 if failed else 0


def _seeds(options: argparse.Namespace) -> range:
    return range(options.seed, options.seed + options.seeds)


def _fails(seed: int, parts: list[str], *, keep: bool) -> bool:
    """Runs a case, and prints its failure, if it fails."""
    try:
        run(draw(seed).without(parts))
        return False
    except Difference as error:
        if keep:
            print(f"seed {seed}: {str(error)[:300]}", flush=True)
        else:
            gone, found = shrink(draw(seed), parts, error)
            print(f"{describe(draw(seed).without(gone))}\n{found}\n{command(seed, gone)}", flush=True)
        return True


if __name__ == "__main__":
    sys.exit(main())
