"""Watermark lag (Fig. 15): how far each of three stages is behind real time, polled once a second.

Beside it, in the same run, the same three stages on Structured Streaming, which has one watermark for a
query and moves it between batches.
"""

from __future__ import annotations

import datetime
import itertools
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import millwheel as mw
from benchmarks import chart, results
from benchmarks.peers import transform_with_state
from benchmarks.pipelines import stages
from benchmarks.session import session

_RATE = 1_000
_FILES = 100
"""A second: a watermark is behind by the time since the last file at least, 5 ms on average."""
GOAL = 20.0
"""Milliseconds, of the first stage; a further one adds none."""
_SETTLING = 8.0  # seconds before the first poll: both have started, and their code is warm

Poll = Callable[[], dict[str, float]]


def run(*, quick: bool = False) -> dict[str, Any]:
    """Runs both systems one after the other, prints a table, and writes the artifacts."""
    seconds = 10 if quick else 40
    lags: dict[str, list[float]] = {}
    with results.scratch("lag") as work, session(work, transform_with_state.SETTINGS) as spark:
        lags |= _millwheel(spark, work / "millwheel", seconds)
        lags |= _peer(spark, work / "peer", seconds)
    rows = {
        name: {"mean": statistics.mean(values), "stdev": statistics.pstdev(values)}
        for name, values in lags.items()
    }
    own = [rows[name]["mean"] for name in stages.STAGES]
    result = {
        "quick": quick,
        "seconds": seconds,
        "lag_milliseconds": rows,
        "added_by_each_further_stage": [later - earlier for earlier, later in itertools.pairwise(own)],
    }
    label = results.name("lag", quick=quick)
    results.save(label, result)
    table = [[name, part["mean"], part["stdev"]] for name, part in rows.items()]
    print(results.table(["stage", "lag, ms (mean)", "stdev"], table))
    print(f"{results.verdict(own[0] <= GOAL)}  the first stage: {own[0]:.1f} ms, goal at most {GOAL:.0f}")
    times = list(range(seconds))
    chart.lines(
        results.artifact(f"{label}.png"),
        "Low watermark behind real time",
        "seconds",
        {"lag, ms": {name: (times[: len(values)], values) for name, values in lags.items()}},
    )
    return result


def _millwheel(spark: SparkSession, work: Path, seconds: int) -> dict[str, list[float]]:
    source = work / "in"
    source.mkdir(parents=True)
    with mw.start(stages.pipeline(source), store=work / "store", spark=spark, progress=False) as job:

        def poll() -> dict[str, float]:
            lows = job.status().low_watermarks
            now = time.time_ns() // 1_000
            return {name: (now - lows[name]) / 1_000 for name in stages.STAGES}

        return polled(source, poll, seconds)


def _peer(spark: SparkSession, work: Path, seconds: int) -> dict[str, list[float]]:
    source = work / "in"
    source.mkdir(parents=True)
    query = transform_with_state.three_stages(spark, source, work)

    def poll() -> dict[str, float]:
        progress = query.lastProgress
        error = query.exception()
        if error is not None:
            raise error
        mark = progress.eventTime.get("watermark") if progress is not None else None
        if mark is None:
            return {}
        moment = datetime.datetime.fromisoformat(mark)
        if not moment.timestamp():
            return {}  # no batch has moved it yet
        return {"Structured Streaming": (time.time() - moment.timestamp()) * 1_000}

    try:
        return polled(source, poll, seconds)
    finally:
        query.stop()


def polled(source: Path, poll: Poll, seconds: int) -> dict[str, list[float]]:
    """Polls once a second while a writer of its own keeps its pace."""
    command = [
        sys.executable,
        "-m",
        "benchmarks.writer",
        str(source),
        str(_RATE),
        str(_SETTLING + seconds + 5),
        str(_FILES),
    ]
    writer = subprocess.Popen(command)
    lags: dict[str, list[float]] = {}
    try:
        begin = time.monotonic() + _SETTLING
        for number in range(seconds):
            time.sleep(max(begin + number - time.monotonic(), 0.0))  # the pace of the polls, as the paper's
            for name, lag in poll().items():
                lags.setdefault(name, []).append(lag)
    finally:
        writer.terminate()
        writer.wait()
    return lags
