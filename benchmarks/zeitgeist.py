"""The whole pipeline of Fig. 1, against the same one written for `transformWithState`.

Throughput: generated queries from files, both systems in turns in one Spark, both durable and exactly once.
Watermark lag: both follow a folder that a writer fills at a steady pace, polled once a second.
"""

from __future__ import annotations

import datetime
import json
import os
import shutil
import statistics
import time
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import millwheel as mw
from benchmarks import chart, results
from benchmarks.lag import polled
from benchmarks.peers import transform_with_state
from benchmarks.peers import zeitgeist as peer
from benchmarks.session import session
from millwheel.apps.zeitgeist.pipeline import count_anomalies
from millwheel.apps.zeitgeist.settings import Settings
from millwheel.apps.zeitgeist.synthetic import DELAY, REGIONS, START, Queries, Traffic
from millwheel.model.time import MINUTE

_WIDTH = 15 * MINUTE
_SLACK = DELAY * _WIDTH
_BUCKETS_A_FILE = 8
_FILES_A_BATCH = 6  # batches of some ten thousand records: smaller ones cost the peer most of its rate
_SECONDS_AN_EPOCH = 5.0  # about what a batch of the peer takes: each pays once for a key's state

Anomaly = tuple[str, str, int]


def run(*, quick: bool = False) -> dict[str, Any]:
    """Runs both parts, prints a table, and writes the artifacts."""
    records, rounds, seconds = (20_000, 1, 4) if quick else (100_000, 2, 30)
    name = results.name("zeitgeist", quick=quick)
    with results.scratch("zeitgeist") as work, session(work, transform_with_state.SETTINGS) as spark:
        result: dict[str, Any] = {"quick": quick, "throughput": _Throughput(spark, work, records).run(rounds)}
        results.save(name, result)
        result["lag_milliseconds"] = _lag(spark, work, seconds)
        results.save(name, result)
    _print(result)
    throughput = result["throughput"]
    systems = ("millwheel", "transformWithState")
    chart.bars(
        results.artifact(f"{name}.png"),
        "Zeitgeist: the whole pipeline",
        ["queries a second", "watermark lag, ms"],
        {
            system: [throughput[system]["median"], result["lag_milliseconds"][system]["mean"]]
            for system in systems
        },
        logarithmic=True,
    )
    return result


class _Throughput:
    """The same files through both systems, in turns."""

    def __init__(self, spark: SparkSession, work: Path, records: int) -> None:
        self._spark = spark
        self._work = work
        self._source = work / "queries"
        self._records = _write(self._source, Traffic(seed=1, records=records, width=_WIDTH))
        self._settings = Settings(width=_WIDTH, begin=START)
        self._runs = 0

    def run(self, rounds: int) -> dict[str, Any]:
        ours: list[float] = []
        theirs: list[float] = []
        for number in range(rounds + 1):
            mine, seconds = self._millwheel()
            peers, peer_seconds = self._peer()
            if number:  # the first turn warms up
                ours.append(self._records / seconds)
                theirs.append(self._records / peer_seconds)
                print(f"  millwheel {ours[-1]:,.0f} queries/s, the peer {theirs[-1]:,.0f}", flush=True)
        return {
            "records": self._records,
            "millwheel": {"rates": ours, "median": statistics.median(ours)},
            "transformWithState": {"rates": theirs, "median": statistics.median(theirs)},
            "ratio": statistics.median(ours) / statistics.median(theirs),
            "anomalies": {
                "millwheel": len(mine),
                "transformWithState": len(peers),
                "same": len(mine & peers),
            },
        }

    def _millwheel(self) -> tuple[set[Anomaly], float]:
        folder = self._fresh()
        files = mw.injectors.Files(self._source / "*.jsonl", timestamp="time", watermark=_rotated)
        p = count_anomalies(files, {"WindowCounter": mw.by("query")}, self._settings)
        p.sink("anomalies", mw.sinks.JsonLines(folder / "out"))
        started = time.perf_counter()
        mw.run(p, store=folder / "store", spark=self._spark, progress=False, target=_SECONDS_AN_EPOCH)
        seconds = time.perf_counter() - started
        told = [record.value for record in mw.sinks.JsonLines(folder / "out").records()]
        shutil.rmtree(folder)
        return {(value["key"], value["kind"], value["start"]) for value in told}, seconds

    def _peer(self) -> tuple[set[Anomaly], float]:
        folder = self._fresh()
        slack = f"{_SLACK // mw.SECOND} seconds"
        seconds = peer.find(self._spark, self._source, folder, self._settings, slack, _FILES_A_BATCH)
        told = peer.found(folder)
        shutil.rmtree(folder)
        return told, seconds

    def _fresh(self) -> Path:
        self._runs += 1
        folder = self._work / f"run-{self._runs}"
        folder.mkdir()
        return folder


def _write(folder: Path, traffic: Traffic) -> int:
    """The traffic as files in order of arrival; returns how many queries there are."""
    folder.mkdir(parents=True)
    queries, records = Queries(traffic), 0
    (end,) = set(queries.poll().values())
    for number, first in enumerate(range(0, end, _BUCKETS_A_FILE)):
        lines = []
        for bucket in range(first, min(first + _BUCKETS_A_FILE, end)):
            for region in REGIONS:
                for record in queries.read(region, bucket, bucket + 1):
                    row = {"time": record.timestamp, "query": record.value["query"]}
                    lines.append(json.dumps(row) + "\n")
        path = folder / f"log-{number:04d}.jsonl"
        path.write_text("".join(lines))
        moment = START // mw.SECOND + number  # Structured Streaming takes files by modification time
        os.utime(path, (moment, moment))
        records += len(lines)
    return records


def _rotated(path: str, offset: int) -> int:
    """The files follow each other: one that is not finished holds what arrived since it was begun."""
    number = int(Path(path).stem.removeprefix("log-"))
    return START + (number * _BUCKETS_A_FILE - DELAY) * _WIDTH


def _lag(spark: SparkSession, work: Path, seconds: int) -> dict[str, dict[str, float]]:
    settings = Settings()
    lags: dict[str, list[float]] = {}
    source = work / "live"
    source.mkdir()
    files = mw.injectors.Files(source / "*.jsonl", timestamp="time", follow=True, watermark="monotonic")
    p = count_anomalies(files, {"WindowCounter": mw.by("query")}, settings)
    with mw.start(p, store=work / "live-store", spark=spark, progress=False) as job:

        def ours() -> dict[str, float]:
            low = job.status().low_watermarks["Detector"]
            return {"millwheel": (time.time_ns() // 1_000 - low) / 1_000} if low != mw.MIN_TIME else {}

        lags |= polled(source, ours, seconds)
    source = work / "live-peer"
    source.mkdir()
    query = peer.follow(spark, source, work / "live-peer-work", settings)

    def theirs() -> dict[str, float]:
        error = query.exception()
        if error is not None:
            raise error
        progress = query.lastProgress
        mark = progress.eventTime.get("watermark") if progress is not None else None
        moment = datetime.datetime.fromisoformat(mark).timestamp() if mark is not None else 0
        return {"transformWithState": (time.time() - moment) * 1_000} if moment else {}

    try:
        lags |= polled(source, theirs, seconds)
    finally:
        query.stop()
    return {
        name: {"mean": statistics.mean(values), "stdev": statistics.pstdev(values)}
        for name, values in lags.items()
    }


def _print(result: dict[str, Any]) -> None:
    throughput, lag = result["throughput"], result["lag_milliseconds"]
    rows = [
        [system, throughput[system]["median"], lag[system]["mean"], lag[system]["stdev"]]
        for system in ("millwheel", "transformWithState")
    ]
    print(results.table(["system", "queries/s", "watermark lag, ms", "stdev"], rows))
    told = throughput["anomalies"]
    print(
        f"{throughput['ratio']:.1f} times the peer; anomalies: {told['millwheel']} and "
        f"{told['transformWithState']}, {told['same']} of them the same"
    )
