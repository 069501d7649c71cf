"""Reads a store in Spark's Python workers, a tablet at a time."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as F

from millwheel.errors import MillWheelError, StoreError
from millwheel.model.codec import Codec
from millwheel.model.keys import PARTS
from millwheel.model.pipeline import Pipeline
from millwheel.model.state_codecs import codecs_of
from millwheel.model.time import SECOND
from millwheel.spark.session import context_of
from millwheel.spark.tasks import dumps, reading
from millwheel.store.base import Store
from millwheel.store.lmdb import manifest
from millwheel.store.open import open_to_read
from millwheel.store.tools.export import LONGEST, SCHEMAS, states, timers

NAMES = ("state", "timers", "watermarks", "intervals", "epochs")


@dataclass(frozen=True)
class Tables:
    """The tables of a store; times in microseconds since 1970, and as timestamps.

    ``state`` and ``timers`` are read when they are queried, each tablet in one snapshot; the others are
    small, and as of the time when the store was read.
    """

    state: DataFrame
    """computation, key, tablet, codec, state (JSON), data (as stored), bytes"""
    timers: DataFrame
    """computation, key, kind, tag, time, timestamp

    kind: watermark, wall, hold, or record: a buffered one, whose tag is its stream"""
    watermarks: DataFrame
    """last minutes: time, timestamp, epoch, computation, low_watermark, lag, counts"""
    intervals: DataFrame
    """level, first, last, slot, shard, busy, records_per_second, hot key, rows,
    bytes, timers, holds"""
    epochs: DataFrame
    """the last ones: epoch, began, timestamp, seconds, records, compact,
    phases (seconds by name)"""

    def create_views(self, prefix: str = "") -> None:
        """Creates temporary views of their names for SQL."""
        for name in NAMES:
            getattr(self, name).createOrReplaceTempView(prefix + name)


@dataclass(frozen=True)
class History:
    """Reads the tables of a pipeline's history, in an executor."""

    schemas: dict[str, str]
    read: Callable[[Store], dict[str, list[tuple[Any, ...]]]]


def read(spark: SparkSession, where: str, pipeline: Pipeline | None, history: History) -> Tables:
    """The tables of a store; the small ones are read at once."""
    address = _address(where)
    codecs = dumps(codecs_of(pipeline)) if pipeline is not None else None
    context = context_of(spark)
    found = context.parallelize([0], 1).mapPartitions(_Journal(address, history.read)).collect()[0]
    if isinstance(found, str):
        raise StoreError(found)
    # Twice the cores: so the last task is short.
    parts = context.parallelize(range(PARTS), min(PARTS, 2 * context.defaultParallelism))
    pending = spark.createDataFrame(
        parts.mapPartitions(_Timers(address)), SCHEMAS["timers"], verifySchema=False
    )
    marks = spark.createDataFrame(found["watermarks"], history.schemas["watermarks"])
    return Tables(
        state=spark.createDataFrame(
            parts.mapPartitions(_States(address, codecs)), SCHEMAS["state"], verifySchema=False
        ),
        timers=pending.withColumn("timestamp", _timestamp("time")),
        watermarks=marks.withColumn("timestamp", _timestamp("time")).withColumn(
            "lag",
            F.when(
                F.col("low_watermark").between(-LONGEST, LONGEST),
                (F.col("time") - F.col("low_watermark")) / SECOND,
            ),
        ),
        intervals=spark.createDataFrame(found["intervals"], history.schemas["intervals"]),
        epochs=spark.createDataFrame(found["epochs"], history.schemas["epochs"]).withColumn(
            "timestamp", _timestamp("began")
        ),
    )


def export(
    spark: SparkSession, where: str, folder: str, pipeline: Pipeline | None, history: History
) -> dict[str, int]:
    """Writes the tables of a store as Parquet; the number of rows of each.

    The tables are written at the same time, and counted while they are written: with few rows most of the
    time is that of the jobs, not of the rows.
    """
    tables = read(spark, where, pipeline, history)

    def write(name: str) -> int:
        counted = Observation()
        table = getattr(tables, name).observe(counted, F.count(F.lit(1)).alias("rows"))
        table.write.parquet(f"file://{os.path.join(os.path.abspath(folder), name)}")
        return int(counted.get["rows"])

    with ThreadPoolExecutor(len(NAMES)) as pool:
        return dict(zip(NAMES, pool.map(write, NAMES), strict=True))


def _address(where: str) -> str:
    """The store's address for workers: with its identity, unless it runs here."""
    try:
        with closing(open_to_read(where)) as store:
            if store.address.startswith("memory:"):
                raise StoreError(f"the store {where!r} exists in one process only: it has no tables")
            return store.address
    except StoreError:
        place = urlsplit(where)
        if place.scheme not in ("", "lmdb"):
            raise
        path = unquote(place.netloc + place.path) if place.scheme == "lmdb" else where
        if not os.path.exists(os.path.join(path, manifest.NAME)):
            raise
        return f"lmdb://{quote(os.path.abspath(path))}"


def _timestamp(column: str) -> Column:
    return F.when(F.col(column).between(-LONGEST, LONGEST), F.timestamp_micros(column))


def _tablets(parts: Iterable[int], store: Store) -> list[int]:
    """The tablets in parts of the key space: the driver need not know their number."""
    count = store.tablets // PARTS
    return [part * count + number for part in parts for number in range(count)]


@dataclass
class _Journal:
    """The task that reads the small tables; a millwheel error is returned as text."""

    address: str
    read: Callable[[Store], dict[str, list[tuple[Any, ...]]]]

    def __call__(self, items: Iterable[Any]) -> Iterator[Any]:
        for _ in items:
            pass
        try:
            with reading(self.address) as store:
                yield self.read(store)
        except MillWheelError as error:
            yield str(error)


@dataclass
class _States:
    """The task that reads the rows of parts of the key space."""

    address: str
    codecs: bytes | None

    def __call__(self, items: Iterable[int]) -> Iterator[Any]:
        codecs: dict[str, Codec] = pickle.loads(self.codecs) if self.codecs is not None else {}
        with reading(self.address) as store:
            yield from states(store, codecs, _tablets(items, store))


@dataclass
class _Timers:
    """The task that reads the timers and holds of parts of the key space."""

    address: str

    def __call__(self, items: Iterable[int]) -> Iterator[Any]:
        with reading(self.address) as store:
            yield from timers(store, _tablets(items, store))
