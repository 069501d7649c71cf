"""Zeitgeist on `transformWithState`: the same windows, model and confidence, in one operator.

Three operators would be three shuffles of state and a watermark each. So a key has one processor, one packed
value with everything in it, read and written once a batch, and one timer for whatever is next: a window that
is complete or a silence that is odd. A spike is found with its window, and not before that is complete.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from benchmarks.peers.transform_with_state import committed, running_seconds
from millwheel.apps.zeitgeist.counts import CountModel, Forecast
from millwheel.apps.zeitgeist.episodes import Episode, Verdict
from millwheel.apps.zeitgeist.leaning import SENSITIVITY, Leaning, records_missed
from millwheel.apps.zeitgeist.packed import Packed
from millwheel.apps.zeitgeist.settings import Settings

_MILLISECONDS = 1_000
_OUTPUT = "key STRING, kind STRING, start BIGINT"


@dataclass
class Key:
    """All that is known of a key."""

    counts: dict[int, int] = field(default_factory=dict)
    timer: int = 0
    silence: int = 0
    model: CountModel = field(default_factory=CountModel, metadata={"packed": CountModel})
    leaning: Leaning = field(default_factory=Leaning, metadata={"packed": Leaning})
    forecast: list[float] | None = None
    episode: Episode | None = field(default=None, metadata={"packed": Episode})


class Zeitgeist(StatefulProcessor):
    """Window Counter, Model Calculator and Detector of a key."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._codec = Packed(Key)

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._state = handle.getValueState("key", "key BINARY")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        known = self._load()
        for row in rows:
            known.counts[row[0]] = known.counts.get(row[0], 0) + 1
        self._save(known)
        return iter(())

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        passed = timerValues.getCurrentWatermarkInMs()
        known = self._load()
        known.timer = 0
        complete = sorted(bucket for bucket in known.counts if self._end(bucket) <= passed)
        for bucket in complete:
            yield from self._miss(key[0], known, self._end(bucket) - 1)
            yield from self._window(key[0], known, bucket, known.counts.pop(bucket))
        yield from self._miss(key[0], known, passed)
        self._save(known)

    def _window(self, key: str, known: Key, bucket: int, count: int) -> Iterator[Row]:
        settings, model = self._settings, known.model
        forecast = Forecast(*known.forecast) if known.forecast is not None else None  # type: ignore[arg-type]
        yield from self._judged(
            key, known, bucket, count, known.leaning.judge(settings, forecast, bucket, count)
        )
        model.update(settings, bucket, count)
        forecast = model.forecast(settings, bucket + 1)
        known.forecast, known.silence = list(forecast), 0
        if forecast.regular:
            doubt = forecast.mean / forecast.low if forecast.low else 1.0
            missed = model.patience(settings, doubt * records_missed(settings, forecast))
            known.silence = self._end(bucket + missed)

    def _miss(self, key: str, known: Key, passed: int) -> Iterator[Row]:
        while known.silence and known.silence <= passed and known.forecast is not None:
            bucket = known.silence * _MILLISECONDS // self._settings.width - 1
            forecast = Forecast(*known.forecast)  # type: ignore[arg-type]
            yield from self._judged(
                key, known, bucket, 0, known.leaning.miss(self._settings, forecast, bucket)
            )
            known.silence = 0 if known.episode is not None else self._end(bucket + 1)

    def _judged(self, key: str, known: Key, bucket: int, count: int, verdict: Verdict) -> Iterator[Row]:
        if known.episode is not None:
            if known.episode.extend(self._settings, bucket, count, verdict) is not None:
                known.episode = None
                known.leaning.forget()
        elif verdict.confidence >= (self._settings.sensitivity or SENSITIVITY):
            known.episode = Episode(
                verdict.kind, verdict.since, bucket, verdict.confidence, count, verdict.expected
            )
            yield Row(key=key, kind=verdict.kind, start=verdict.since * self._settings.width)

    def _end(self, bucket: int) -> int:
        return (bucket + 1) * self._settings.width // _MILLISECONDS

    def _load(self) -> Key:
        found = self._state.get()
        known: Key = self._codec.decode(bytes(found[0])) if found is not None else Key()
        return known

    def _save(self, known: Key) -> None:
        due = [self._end(min(known.counts))] if known.counts else []
        due += [known.silence] if known.silence else []
        if due and (known.timer == 0 or min(due) < known.timer):
            if known.timer:
                self._handle.deleteTimer(known.timer)
            known.timer = min(due)
            self._handle.registerTimer(known.timer)
        self._state.update((self._codec.encode(known),))

    def close(self) -> None:
        """Nothing is held."""


def _anomalies(spark: SparkSession, source: Path, settings: Settings, slack: str, files: int) -> DataFrame:
    return (
        spark.readStream.schema("time BIGINT, query STRING")
        .option("maxFilesPerTrigger", files)
        .option("pathGlobFilter", "*.jsonl")
        .json(str(source))
        .select(
            F.expr(f"time div {settings.width}").alias("bucket"),
            "query",
            F.timestamp_micros("time").alias("moment"),
        )
        .withWatermark("moment", slack)
        .groupBy("query")
        .transformWithState(
            statefulProcessor=Zeitgeist(settings),
            outputStructType=_OUTPUT,
            outputMode="Append",
            timeMode="EventTime",
        )
    )


def find(
    spark: SparkSession, source: Path, work: Path, settings: Settings, slack: str, files_a_batch: int
) -> float:
    """Reads the files that are there and writes the anomalies; returns the seconds it ran."""
    query = (
        _anomalies(spark, source, settings, slack, files_a_batch)
        .writeStream.format("json")
        .option("path", str(work / "out"))
        .option("checkpointLocation", str(work / "checkpoint"))
        .outputMode("append")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return running_seconds(query)


def follow(spark: SparkSession, source: Path, work: Path, settings: Settings) -> StreamingQuery:
    """Follows a folder, one batch after the other with no pause."""
    return (
        _anomalies(spark, source, settings, "0 seconds", 10_000)
        .writeStream.format("noop")
        .option("checkpointLocation", str(work / "checkpoint"))
        .outputMode("append")
        .trigger(processingTime="0 seconds")
        .start()
    )


def found(work: Path) -> set[tuple[str, str, int]]:
    """What `find` wrote: (key, kind, start)."""
    rows = [
        json.loads(line)
        for path in committed(work / "out" / "_spark_metadata")
        for line in path.read_text().splitlines()
    ]
    return {(row["key"], row["kind"], row["start"]) for row in rows}
