"""A join of two streams on millwheel, as a process of its own: what a user would run.

python -m benchmarks.pipelines.joined SOURCE OUT STORE CORES
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from pathlib import Path

import millwheel as mw
from benchmarks import data
from millwheel.spark.session import local_session

WITHIN = mw.MINUTE


def pipeline(source: Path, out: os.PathLike[str]) -> mw.Pipeline:
    """Pairs of one key within a minute."""
    p = mw.Pipeline("joined")
    left, right = (
        p.inject(
            side, mw.injectors.Files(f"{source / side}/*.jsonl", timestamp="time", slack=data.DISORDER)
        ).key_by("key")
        for side in ("left", "right")
    )
    left.join(right, within=WITHIN, name="pairs").sink(mw.sinks.JsonLines(out))
    return p


def read(out: os.PathLike[str]) -> Counter[tuple[int, int]]:
    """The pairs in the sink, by the numbers of their records."""
    return Counter(
        (record.value["left"]["number"], record.value["right"]["number"])
        for record in mw.sinks.JsonLines(out).records()
    )


if __name__ == "__main__":
    spark = local_session(f"local[{sys.argv[4]},4]")
    mw.run(pipeline(Path(sys.argv[1]), Path(sys.argv[2])), store=sys.argv[3], spark=spark, progress=False)
    spark.stop()
