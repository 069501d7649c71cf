"""A store as Spark tables."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from millwheel.model.pipeline import Pipeline

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


NAMES = ("state", "timers", "watermarks", "intervals", "epochs")


@dataclass(frozen=True)
class Tables:
    """What a store holds. Times are microseconds since 1970, and beside them Spark's timestamps.

    ``state`` and ``timers`` are read when they are queried, each tablet at a moment; the others are small,
    and are as they were when the store was read.
    """

    state: DataFrame
    """computation, key, tablet, codec, state (JSON), data (as it is in the store), bytes"""
    timers: DataFrame
    """computation, key, kind (watermark, wall, hold, or record: one that waits, its tag is its stream), tag,
    time, timestamp"""
    watermarks: DataFrame
    """the last minutes: time, timestamp, epoch, computation, low_watermark, lag, counts"""
    intervals: DataFrame
    """level, first, last, slot, shard, busy, records_per_second, hot key, rows, bytes, timers, holds"""
    epochs: DataFrame
    """the last ones: epoch, began, timestamp, seconds, records, compact, phases (seconds by name)"""

    def create_views(self, prefix: str = "") -> None:
        """Makes them known to SQL as temporary views of their names."""
        for name in NAMES:
            getattr(self, name).createOrReplaceTempView(prefix + name)


def read_store(
    spark: SparkSession, store: str | os.PathLike[str], pipeline: Pipeline | None = None
) -> Tables:
    """The tables of a store, of a pipeline that runs or has stopped.

    With the pipeline, states are read by the codecs of its computations; without, as MessagePack or JSON.
    """
    from millwheel.spark.store_reader import read

    return read(spark, os.fspath(store), pipeline)
