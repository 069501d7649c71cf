"""PySpark's own stateful operator: `transformWithState`, with rows and with Pandas, state in RocksDB."""

from __future__ import annotations

import datetime
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgpack
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

SETTINGS = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    # Uploads what changed with each batch, in place of a snapshot of the whole database.
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    # Counting the rows of a store costs a look-up for every write.
    "spark.sql.streaming.stateStore.rocksdb.trackTotalNumberOfRows": "false",
    # A state store for each core: with the default of 200 a batch would be all scheduling.
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
    "spark.sql.adaptive.enabled": "false",
    # Listing more than 32 new files would be a Spark job of its own, almost a second of a batch.
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "10000",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.streaming.numRecentProgressUpdates": "10000",
}

_INPUT = "time BIGINT, query STRING, user STRING"
_MILLISECONDS = 1_000


class _Windower(StatefulProcessor):
    """Counts a key's records per one-second window.

    Every access to state or timers is a round trip to the JVM, so a key has one value for all its open
    windows, one timer for the earliest of them, and reads and writes each once a batch. The value is
    packed by hand: a map or a list of rows in it is not taken, or is slower.
    """

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._state = handle.getValueState("counts", "counts BINARY")

    def _add(self, arrived: Mapping[int, int]) -> None:
        found = self._state.get()
        counts: dict[int, int] = _unpack(found[0]) if found is not None else {}
        earliest = min(counts, default=None)
        for window, count in arrived.items():
            counts[window] = counts.get(window, 0) + count
        self._state.update((msgpack.packb(counts),))
        first = min(counts)
        if earliest is None or first < earliest:
            if earliest is not None:
                self._handle.deleteTimer((earliest + 1) * _MILLISECONDS)
            self._handle.registerTimer((first + 1) * _MILLISECONDS)

    def _complete(self, passed: int) -> list[tuple[int, int]]:
        """The windows that ended before the watermark, which are forgotten."""
        found = self._state.get()
        counts = _unpack(found[0]) if found is not None else {}
        complete = sorted(window for window in counts if (window + 1) * _MILLISECONDS <= passed)
        windows = [(window, counts.pop(window)) for window in complete]
        if counts:
            self._state.update((msgpack.packb(counts),))
            self._handle.registerTimer((min(counts) + 1) * _MILLISECONDS)
        else:
            self._state.clear()
        return windows

    def close(self) -> None:
        """Nothing is held."""


class Windower(_Windower):
    """Takes and gives rows."""

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        self._add(Counter(row[0] for row in rows))
        return iter(())

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        for window, count in self._complete(timerValues.getCurrentWatermarkInMs()):
            yield Row(query=key[0], window=window, count=count)


class PandasWindower(_Windower):
    """Takes and gives data frames, one or more a key."""

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        arrived: Counter[int] = Counter()
        for frame in rows:
            arrived.update(frame["window"].to_numpy().tolist())
        self._add(arrived)
        return iter(())

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Any]:
        import pandas  # here, as only this one needs it

        windows = self._complete(timerValues.getCurrentWatermarkInMs())
        if windows:
            yield pandas.DataFrame(
                {
                    "query": key[0],
                    "window": [window for window, _ in windows],
                    "count": [count for _, count in windows],
                }
            )


def _unpack(data: bytes) -> dict[int, int]:
    counts: dict[int, int] = msgpack.unpackb(data, strict_map_key=False)
    return counts


def count_windows(
    spark: SparkSession, source: Path, work: Path, files_a_batch: int, *, way: str = "row"
) -> float:
    """Reads the files that are there, counts, and writes the windows; returns the seconds it ran.

    ``way`` is ``row`` or ``pandas``, a processor in Python, or ``groupBy``, which has no Python in its path.
    """
    records = (
        spark.readStream.schema(_INPUT)
        .option("maxFilesPerTrigger", files_a_batch)
        .option("pathGlobFilter", "*.jsonl")
        .json(str(source))
    )
    keyed = (
        records.select(
            "query",
            F.expr("time div 1000000").alias("window"),
            F.timestamp_micros("time").alias("moment"),
        )
        .withWatermark("moment", "2 seconds")
        .select("window", "query", "moment")
    )
    if way == "groupBy":
        counted = keyed.groupBy(F.window("moment", "1 second").alias("span"), "query").count()
        windows = counted.select("query", F.unix_seconds("span.start").alias("window"), "count")
    else:
        by_query = keyed.groupBy("query")
        apply = by_query.transformWithStateInPandas if way == "pandas" else by_query.transformWithState
        windows = apply(
            statefulProcessor=PandasWindower() if way == "pandas" else Windower(),
            outputStructType="query STRING, window BIGINT, count BIGINT",
            outputMode="Append",
            timeMode="EventTime",
        )
    query = (
        windows.writeStream.format("json")
        .option("path", str(work / "out"))
        .option("checkpointLocation", str(work / "checkpoint"))
        .outputMode("append")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return running_seconds(query)


def running_seconds(query: StreamingQuery) -> float:
    """How long the batches took, without the planning of the first one.

    That starts a Python process to look at the processor, once for a query: start-up, which is not compared.
    """
    progress = query.recentProgress
    total = sum(batch.durationMs["triggerExecution"] for batch in progress)
    return (total - progress[0].durationMs.get("queryPlanning", 0)) / _MILLISECONDS


class Numberer(StatefulProcessor):
    """Emits every record with its number among its key's: one read and one write a key and batch."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._state = handle.getValueState("count", "count BIGINT")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        found = self._state.get()
        count = found[0] if found is not None else 0
        for row in rows:
            count += 1
            yield Row(number=row[0], sent=row[1], count=count)
        self._state.update((count,))

    def close(self) -> None:
        """Nothing is held."""


def number_records(
    spark: SparkSession,
    source: Path,
    checkpoint: Path,
    write: Callable[[int, list[tuple[int, int]]], None],
    *,
    real_time: str | None = None,
) -> StreamingQuery:
    """Follows a folder, one batch after the other with no pause; ``write`` gets a batch's results.

    With ``real_time``, in Real-time Mode with batches of that length.
    """
    records = (
        spark.readStream.schema("time BIGINT, sent BIGINT, number BIGINT, query STRING")
        .option("pathGlobFilter", "*.jsonl")
        .json(str(source))
    )
    mode = "Append" if real_time is None else "Update"
    numbered = (
        records.select("number", "sent", "query")
        .groupBy("query")
        .transformWithState(
            statefulProcessor=Numberer(),
            outputStructType="number BIGINT, sent BIGINT, count BIGINT",
            outputMode=mode,
            timeMode="None",
        )
    )

    def finish(batch: DataFrame, number: int) -> None:
        # Collecting runs the batch; few rows, so this is cheaper than any file sink's commit.
        write(number, [(row[0], row[1]) for row in batch.collect()])

    return (
        numbered.writeStream.foreachBatch(finish)
        .option("checkpointLocation", str(checkpoint))
        .outputMode(mode.lower())
        .trigger(**({"processingTime": "0 seconds"} if real_time is None else {"realTime": real_time}))
        .start()
    )


def committed(log: Path) -> list[Path]:
    """The data files of the file sink's log: those in the folder alone may be of failed attempts."""
    paths = []
    for entry in log.iterdir():
        if entry.name.startswith("."):
            continue
        for line in entry.read_text().splitlines()[1:]:
            paths.append(Path(json.loads(line)["path"].removeprefix("file://")))
    return sorted(set(paths))


class Stage(StatefulProcessor):
    """Counts a key's records per window; emits a window, with its time, when the watermark has passed it."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._state = handle.getValueState("counts", "counts BINARY")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        found = self._state.get()
        counts = _unpack(found[0]) if found is not None else {}
        for row in rows:
            window = int(row["moment"].timestamp())
            counts[window] = counts.get(window, 0) + 1
            self._handle.registerTimer((window + 1) * _MILLISECONDS)
        self._state.update((msgpack.packb(counts),))
        return iter(())

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        window = expiredTimerInfo.getExpiryTimeInMs() // _MILLISECONDS - 1
        found = self._state.get()
        counts = _unpack(found[0]) if found is not None else {}
        if window in counts:
            del counts[window]
            self._state.update((msgpack.packb(counts),))
            moment = datetime.datetime.fromtimestamp(window + 0.999999)
            yield Row(key=key[0], moment=moment)

    def close(self) -> None:
        """Nothing is held."""


def three_stages(spark: SparkSession, source: Path, work: Path) -> StreamingQuery:
    """The pipeline of three re-keyed stages that the lag of watermarks is measured on."""
    records = (
        spark.readStream.schema("time BIGINT, sent BIGINT, number BIGINT, query STRING")
        .option("pathGlobFilter", "*.jsonl")
        .json(str(source))
        .select(F.col("query").alias("key"), F.timestamp_micros("time").alias("moment"))
        .withWatermark("moment", "0 seconds")
    )
    rows = records
    for number in range(3):
        if number:
            rows = rows.select(F.expr("substring(key, 1, length(key) - 1)").alias("key"), "moment")
        rows = rows.groupBy("key").transformWithState(
            statefulProcessor=Stage(),
            outputStructType="key STRING, moment TIMESTAMP",
            outputMode="Append",
            timeMode="EventTime",
            **({"eventTimeColumnName": "moment"} if number < 2 else {}),
        )
    return (
        rows.writeStream.format("noop")
        .option("checkpointLocation", str(work / "checkpoint"))
        .outputMode("append")
        .trigger(processingTime="0 seconds")
        .start()
    )
