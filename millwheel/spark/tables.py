"""Reads a store in Spark's Python workers, a tablet at a time."""

from __future__ import annotations

import json
import os
import pickle
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as F

from millwheel.errors import MillWheelError, StoreError
from millwheel.model.codec import Codec, unpack
from millwheel.model.keys import TABLETS, key_text
from millwheel.model.pipeline import Pipeline
from millwheel.model.time import SECOND
from millwheel.spark.tasks import dumps, reading
from millwheel.store import identity
from millwheel.store.base import Store
from millwheel.store.layout import after, row_prefix
from millwheel.store.open import open_to_read
from millwheel.store.row import Row, decode_row
from millwheel.tables import NAMES, Tables
from millwheel.watch.history import COUNTED, KEPT
from millwheel.watch.key import codecs_of, decoded
from millwheel.watch.plain import plain
from millwheel.watch.view import Viewer

_LONGEST_STATE = 10_000_000  # characters: a table is for programs, which want all of it
_RANGE = 10**17  # microseconds: about the year 5138, as far as Python's datetime follows

_STATE = "computation string, key string, tablet int, codec string, state string, data binary, bytes long"
_TIMERS = "computation string, key string, kind string, tag string, time long"
_INTERVALS = (
    "level int, first int, last int, slot int, shard int, busy double, records_per_second double, "
    "hot_computation string, hot_key string, hot_share double, " + ", ".join(f"{name} long" for name in KEPT)
)
_WATERMARKS = "time long, epoch long, computation string, low_watermark long, " + ", ".join(
    f"{name} long" for name in (*COUNTED, *KEPT)
)
_EPOCHS = "epoch long, began long, seconds double, records long, compact boolean, phases map<string,double>"


def read(spark: SparkSession, where: str, pipeline: Pipeline | None) -> Tables:
    """The tables of a store; the small ones are read at once."""
    address = _address(where)
    codecs = dumps(codecs_of(pipeline)) if pipeline is not None else None
    context = spark.sparkContext
    found = context.parallelize([0], 1).mapPartitions(_Journal(address)).collect()[0]
    if isinstance(found, str):
        raise StoreError(found)
    view, samples = found
    # Twice the cores: the last of the tasks does not keep the others waiting for long.
    tablets = context.parallelize(range(TABLETS), min(TABLETS, 2 * context.defaultParallelism))
    watermarks = [
        {"time": sample["time"], "epoch": sample["epoch"], "computation": name, **counts}
        for sample in samples
        for name, counts in sample["computations"].items()
    ]
    epochs = [epoch for sample in samples for epoch in sample["epochs"]]
    timers = spark.createDataFrame(tablets.mapPartitions(_Timers(address)), _TIMERS, verifySchema=False)
    marks = _local(spark, watermarks, _WATERMARKS)
    return Tables(
        state=spark.createDataFrame(
            tablets.mapPartitions(_States(address, codecs)), _STATE, verifySchema=False
        ),
        timers=timers.withColumn("timestamp", _timestamp("time")),
        watermarks=marks.withColumn("timestamp", _timestamp("time")).withColumn(
            "lag",
            F.when(
                F.col("low_watermark").between(-_RANGE, _RANGE),
                (F.col("time") - F.col("low_watermark")) / SECOND,
            ),
        ),
        intervals=_local(spark, view["intervals"], _INTERVALS),
        epochs=_local(spark, epochs, _EPOCHS).withColumn("timestamp", _timestamp("began")),
    )


def export(spark: SparkSession, where: str, folder: str, pipeline: Pipeline | None) -> dict[str, int]:
    """Writes the tables of a store to a folder as Parquet; the rows of each.

    The tables are written at the same time, and counted while they are written: with few rows most of the
    time goes into the jobs, not the rows.
    """
    tables = read(spark, where, pipeline)

    def write(name: str) -> int:
        counted = Observation()
        table = getattr(tables, name).observe(counted, F.count(F.lit(1)).alias("rows"))
        table.write.parquet(f"file://{os.path.join(os.path.abspath(folder), name)}")
        return int(counted.get["rows"])

    with ThreadPoolExecutor(len(NAMES)) as pool:
        return dict(zip(NAMES, pool.map(write, NAMES), strict=True))


def _address(where: str) -> str:
    """The store as workers are to open it: with its identity, unless this very process runs it."""
    try:
        with closing(open_to_read(where)) as store:
            if store.address.startswith("memory:"):
                raise StoreError(f"the store {where!r} lives in one process only: there are no tables of it")
            return store.address
    except StoreError:
        place = urlsplit(where)
        if place.scheme not in ("", "lmdb"):
            raise
        path = unquote(place.netloc + place.path) if place.scheme == "lmdb" else where
        if not os.path.exists(os.path.join(path, identity.NAME)):
            raise
        return f"lmdb://{quote(os.path.abspath(path))}"


def _timestamp(column: str) -> Column:
    return F.when(F.col(column).between(-_RANGE, _RANGE), F.timestamp_micros(column))


def _local(spark: SparkSession, rows: list[dict[str, Any]], schema: str) -> DataFrame:
    names = [field.strip().split(" ")[0] for field in schema.replace("<string,", "<string;").split(",")]
    return spark.createDataFrame([tuple(row[name] for name in names) for row in rows], schema)


@dataclass
class _Journal:
    """The task that reads what is small; an error of ours comes back as its text."""

    address: str

    def __call__(self, items: Iterable[Any]) -> Iterator[Any]:
        for _ in items:
            pass
        try:
            with reading(self.address) as store:
                viewer = Viewer(store)
                view = viewer.look(time.time_ns() // 1000)
                yield view.to_value(), [asdict(sample) for sample in viewer.samples]
        except MillWheelError as error:
            yield str(error)


@dataclass
class _States:
    """The task that reads the rows of tablets."""

    address: str
    codecs: bytes | None

    def __call__(self, items: Iterable[int]) -> Iterator[Any]:
        codecs: dict[str, Codec] = pickle.loads(self.codecs) if self.codecs is not None else {}
        for tablet, name, key, row in _rows(self.address, items):
            codec, text = None, None
            if row.state is not None:
                codec, state = decoded(row.state, codecs.get(name))
                text = json.dumps(plain(state, _LONGEST_STATE), ensure_ascii=False)
            yield name, key, tablet, codec, text, row.state, len(row.state or b"")


@dataclass
class _Timers:
    """The task that reads the timers and holds of tablets."""

    address: str

    def __call__(self, items: Iterable[int]) -> Iterator[Any]:
        for _, name, key, row in _rows(self.address, items):
            for kind, times in (("watermark", row.timers), ("wall", row.wall), ("hold", row.holds)):
                for tag, moment in times.items():
                    yield name, key, kind, tag, moment


def _rows(address: str, tablets: Iterable[int]) -> Iterator[tuple[int, str, str, Row]]:
    """The rows of tablets; a key that UTF-8 cannot carry is shown with its code points."""
    wanted = list(tablets)
    with reading(address) as store:
        with store.journal.snapshot() as journal:
            numbers: dict[str, int] = unpack(journal.get(b"numbers") or b"\x80")
        for tablet in wanted:
            for name, number in numbers.items():
                for suffix, data in _tablet(store, number, tablet):
                    row = decode_row(data)
                    key = row.key if row.key is not None else key_text(suffix[8:])
                    yield tablet, name, key.encode("utf-8", "backslashreplace").decode(), row


def _tablet(store: Store, number: int, tablet: int) -> Iterator[tuple[bytes, bytes]]:
    prefix = row_prefix(number)
    stop = after(prefix) if tablet == TABLETS - 1 else prefix + bytes(((tablet + 1) << 2,))
    with store.shards[tablet * len(store.shards) // TABLETS].snapshot() as snapshot:
        for key, data in snapshot.scan(prefix + bytes((tablet << 2,)), stop):
            yield key[len(prefix) :], data
