"""Starts Python workers ahead of time, for a standby."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from pyspark import SparkContext


def warm(context: SparkContext) -> None:
    """Starts the Python workers of a session, and lets them import what tasks need."""
    count = context.defaultParallelism
    context.parallelize(range(count), count).mapPartitions(_imports).count()


def _imports(items: Iterable[int]) -> Iterator[int]:
    import millwheel.spark.resident
    import millwheel.worker.bloom  # noqa: F401 - with NumPy

    yield from items
