"""The records of an injector, read in tasks of Spark as an epoch reads them, with nothing behind."""

from __future__ import annotations

import gc
from typing import Any

from pyspark.sql import SparkSession

import millwheel as mw

PIECE = 100_000
"""Records that a task reads at once, as in an epoch."""


def records_in_tasks(spark: SparkSession, injector: mw.Injector) -> int:
    """Reads all that an injector has in tasks, cut as for an epoch; gives the number of records."""
    ranges = []
    for partition, end in injector.poll().items():
        start: Any = None
        while end is not None and start != end:
            cut = injector.bound(partition, start, end, PIECE)
            ranges.append((partition, start, cut))
            start = cut

    def count(items: Any) -> Any:
        gc.disable()  # as in every task of an epoch
        for item in items:
            yield sum(len(batch.timestamps) for batch in injector.read_batches(*item) or ())
        gc.enable()

    context = spark.sparkContext
    slices = min(len(ranges), context.defaultParallelism * 4)
    return sum(context.parallelize(ranges, slices).mapPartitions(count).collect())
