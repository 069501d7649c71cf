"""Latency by the number of slots, with input in proportion (the shape of Fig. 14), and what a slot costs."""

from __future__ import annotations

import shutil
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import millwheel as mw
from benchmarks import chart, results
from benchmarks.latency import summary, turn
from benchmarks.pipelines import numbers
from benchmarks.session import session
from millwheel.master.driver import Driver
from millwheel.master.intervals import shard_count
from millwheel.master.options import Options
from millwheel.master.planner import Mode
from millwheel.model.graph import build
from millwheel.spark.job_executor import SparkExecutor
from millwheel.store.lmdb.lmdb_store import LmdbStore

_SLOTS = (1, 2, 4, 8, 16, 32)
_RATE = 40  # records in a second for each slot: 32 slots have what two cores carry with a task for each
_EPOCHS = 15


def run(*, quick: bool = False) -> dict[str, Any]:
    """Measures each number of slots, prints a table, and writes the artifacts."""
    seconds = 3.0 if quick else 20.0
    slots = (1, 4, 16) if quick else _SLOTS
    found: dict[int, dict[str, Any]] = {}
    with results.scratch("slots") as work, session(work) as spark:
        for count in slots:
            rate = _RATE * count
            latencies = turn(spark, work / f"turn-{count}", _started(count), seconds, rate=rate)
            found[count] = {"rate": rate, **summary([latencies]), "empty_epoch": _empty(spark, work, count)}
            part = found[count]
            print(
                f"{count} slots, {rate}/s: median {part['p50']:.0f} ms, p95 {part['p95']:.0f}, "
                f"p99 {part['p99']:.0f}; an empty epoch {part['empty_epoch']:.0f} ms",
                flush=True,
            )
    low, high = min(slots), max(slots)
    per_slot = (found[high]["empty_epoch"] - found[low]["empty_epoch"]) / (high - low)
    result = {"quick": quick, "seconds": seconds, "slots": found, "milliseconds_per_slot": per_slot}
    label = results.name("slots", quick=quick)
    results.save(label, result)
    rows = [
        [count, part["rate"], part["p50"], part["p95"], part["p99"], part["empty_epoch"]]
        for count, part in found.items()
    ]
    head = ["slots", "records/s", "p50 ms", "p95 ms", "p99 ms", "empty epoch ms"]
    print(results.table(head, rows))
    print(f"a slot costs an otherwise empty epoch {per_slot:.1f} ms")
    chart.lines(
        results.artifact(f"{label}.png"),
        "slots, with input in proportion",
        "slots",
        {
            "latency, ms": {
                name: (list(found), [part[name] for part in found.values()]) for name in ("p50", "p95", "p99")
            },
            "empty epoch, ms": {"wide": (list(found), [part["empty_epoch"] for part in found.values()])},
        },
    )
    return result


def _started(slots: int) -> Any:
    """The stage of the latency benchmark; every epoch is a wide one."""

    @contextmanager
    def start(spark: SparkSession, source: Path, out: Path, work: Path) -> Iterator[Callable[[], object]]:
        job = mw.start(
            numbers.pipeline(source, out),
            store=work / "store",
            spark=spark,
            slots=slots,
            compact_below=0,
            progress=False,
        )
        with job:
            yield job.status

    return start


def _empty(spark: SparkSession, work: Path, slots: int) -> float:
    """The median time of an epoch in which nothing happens, in milliseconds."""
    p = mw.Pipeline("empty")
    p.inject("nothing", mw.injectors.Records([]))
    p.add(numbers.Numberer(), inputs={"nothing": mw.by("query")}, outputs=["numbered"])
    graph = build(p)
    folder = work / "empty"
    store = LmdbStore(folder, shards=shard_count(slots))
    driver = Driver(graph, store, Options(slots=slots, compact_below=0), clock=lambda: 0, owner="a benchmark")
    executor = SparkExecutor(spark.sparkContext, graph, driver.numbers, store)
    took = []
    for _ in range(_EPOCHS):
        plan = driver.next_plan(Mode.FORCED)
        assert plan is not None
        started = time.perf_counter()
        driver.run(plan, executor)
        took.append((time.perf_counter() - started) * 1e3)
    executor.close()
    driver.close()
    shutil.rmtree(folder)
    return statistics.median(took[5:])
