"""How fast a pipeline is once it runs: looks at its progress, and takes no start-up for a rate."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path

from pyspark.sql import SparkSession

import millwheel as mw

_LOOK = 0.05  # seconds between looks: well below an epoch at full speed


@dataclass
class Pace:
    """The moments at which records had been taken in: (seconds, records), one for an epoch at most."""

    points: list[tuple[float, int]] = field(default_factory=list)

    def rate(self, first: int = 0) -> float:
        """Records in a second, after ``first`` of them; the whole of it where there is too little after."""
        after = [point for point in self.points if point[1] >= first]
        if len(after) < 2 or after[0][1] == after[-1][1]:
            after = self.points
        (began, least), (ended, most) = after[0], after[-1]
        return (most - least) / (ended - began) if ended > began else 0.0


def follow(spark: SparkSession, pipeline: mw.Pipeline, store: Path, *, records: int, limit: float) -> Pace:
    """Runs a pipeline until it has taken in ``records``, or for ``limit`` seconds."""
    pace = Pace()
    started = time.monotonic()
    with mw.start(pipeline, store=store, spark=spark, progress=False) as job:
        while True:
            ended = job.wait(_LOOK) is not None
            seconds, taken = time.monotonic() - started, job.status().records_in
            if not pace.points or taken > pace.points[-1][1]:
                pace.points.append((seconds, taken))
            if ended or taken >= records or seconds > limit:
                break
        job.stop()
    return pace


def size_of(store: Path) -> int:
    """Bytes on the disk."""
    return sum(path.stat().st_blocks * 512 for path in store.rglob("*") if path.is_file())
