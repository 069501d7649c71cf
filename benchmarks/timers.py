"""Timers: what a million that wait cost an epoch in which ten are due, and how late wall timers fire.

The epochs run on Spark, in one interval. Wall timers fire in a pipeline that has nothing else to do.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import millwheel as mw
from benchmarks import chart, results
from benchmarks.session import session
from millwheel.master.driver import Driver
from millwheel.master.options import Options
from millwheel.master.planner import Mode
from millwheel.model.graph import build
from millwheel.spark.job_executor import SparkExecutor
from millwheel.store.lmdb.lmdb_store import LmdbStore

_PENDING = 1_000_000
_ROUNDS = 40
_DUE = 10  # in each round
_FAR = 1 << 40  # when the timers that only wait are due
_WALL_TIMERS = 40
_APART = 250 * mw.MILLISECOND
_TARGET_RATIO = 2.0
_TARGET_LATE_MS = 100.0


class Keys(mw.Injector):
    """A record for each key, then nothing but a watermark that is set by hand."""

    bounded = False

    def __init__(self, keys: int) -> None:
        self._keys = keys
        self.watermark = 0

    def poll(self) -> Mapping[str, Any]:
        return {"one": self._keys}

    def read(self, partition: str, start: Any, end: Any) -> Iterable[mw.Record]:
        return (mw.Record(key=f"key-{n}", value=n, timestamp=0) for n in range(start or 0, end))

    def low_watermark(self, partition: str, offset: Any) -> int:
        return self.watermark

    def bound(self, partition: str, start: Any, end: Any, records: int) -> Any:
        return min(end, (start or 0) + records)


class Sets(mw.Computation):
    """Sets a timer for each key: ten are due in each round, the others much later."""

    def process_record(self, record: mw.Record) -> None:
        number = record.value // _DUE
        self.set_timer("t", number + 1 if number < _ROUNDS else _FAR + record.value)

    def process_timer(self, timer: mw.Timer) -> None:
        self.produce("fired", timer.timestamp)


class _Waiting:
    """One interval on Spark, with so many timers pending."""

    def __init__(self, spark: SparkSession, path: Path, timers: int) -> None:
        self.injector = Keys(timers)
        self.sink = mw.sinks.Collect()
        p = mw.Pipeline("timers")
        p.inject("in", self.injector)
        p.add(Sets(), inputs={"in": mw.by_key}, outputs=["fired"])
        p.sink("fired", self.sink)
        graph = build(p)
        self.driver = Driver(graph, LmdbStore(path), Options(slots=1), clock=lambda: 0, owner="a benchmark")
        self.executor = SparkExecutor(spark.sparkContext, graph, self.driver.numbers, self.driver.store)
        while (plan := self.driver.next_plan()) is not None:
            self.driver.run(plan, self.executor)

    def epoch(self, watermark: int) -> float:
        """Runs one epoch; gives the milliseconds that it took."""
        self.injector.watermark = watermark
        started = time.perf_counter()
        plan = self.driver.next_plan(Mode.FORCED)
        assert plan is not None
        self.driver.run(plan, self.executor)
        return (time.perf_counter() - started) * 1e3

    def close(self) -> None:
        self.executor.close()
        self.driver.close()


class Alarm(mw.Computation):
    """A wall timer that sets the next one, and says how late it was."""

    def process_record(self, record: mw.Record) -> None:
        self.set_timer("alarm", self.now + _APART, mw.WALL)

    def process_timer(self, timer: mw.Timer) -> None:
        self.produce("late", time.time_ns() // 1_000 - timer.timestamp)
        self.state["fired"] = self.state.get("fired", 0) + 1
        if self.state["fired"] < _WALL_TIMERS:
            self.set_timer("alarm", time.time_ns() // 1_000 + _APART, mw.WALL)


class Once(mw.Injector):
    """One record, and then silence that does not end."""

    bounded = False

    def poll(self) -> Mapping[str, Any]:
        return {"one": 1}

    def read(self, partition: str, start: Any, end: Any) -> Iterable[mw.Record]:
        return [mw.Record(key="alarm", value=None, timestamp=0)] if not start else []

    def low_watermark(self, partition: str, offset: Any) -> int:
        return 0


def run(*, quick: bool = False) -> dict[str, Any]:
    """Runs both, prints a table, and writes the artifacts."""
    pending = 20_000 if quick else _PENDING
    with results.scratch("timers") as work, session(work) as spark:
        costs = _pending(spark, work, pending)
        late = _wall(spark, work / "wall", 8 if quick else _WALL_TIMERS)
    none, many = (statistics.median(found) for found in costs.values())
    late.sort()
    p95 = late[int(len(late) * 0.95) - 1]
    p50 = statistics.median(late)
    ratio = many / none
    few_enough, soon_enough = ratio <= _TARGET_RATIO, p95 <= _TARGET_LATE_MS
    result: dict[str, Any] = {
        "quick": quick,
        "pending": pending,
        "epoch_ms": {name: round(statistics.median(found), 2) for name, found in costs.items()},
        "ratio": ratio,
        "target": _TARGET_RATIO,
        "passed": few_enough,
        "wall_late_ms": {"p50": p50, "p95": p95, "max": late[-1]},
        "wall_target_ms": _TARGET_LATE_MS,
        "wall_passed": soon_enough,
    }
    label = results.name("timers", quick=quick)
    results.save(label, result)
    print(results.table(["timers pending", "ms an epoch"], [[n, round(v, 1)] for n, v in _rows(result)]))
    print(
        f"{results.verdict(few_enough)}  {_DUE} due of {pending:,} pending: {ratio:.2f} times an epoch with "
        f"none pending, target {_TARGET_RATIO:.0f}"
    )
    print(
        f"{results.verdict(soon_enough)}  {len(late)} wall timers, idle pipeline: p50 {p50:.0f} ms late, "
        f"p95 {p95:.0f} ms, worst {late[-1]:.0f} ms, target {_TARGET_LATE_MS:.0f} ms"
    )
    chart.bars(
        results.artifact(f"{label}.png"),
        "An epoch on Spark, ms (median)",
        [name for name, _ in _rows(result)],
        {"ms": [value for _, value in _rows(result)]},
    )
    return result


def _rows(result: dict[str, Any]) -> list[tuple[str, float]]:
    return list(result["epoch_ms"].items())


def _pending(spark: SparkSession, work: Path, pending: int) -> dict[str, list[float]]:
    """Milliseconds of epochs, in turns: with no timer at all, and with ten due among many."""
    waiting = {
        "none": _Waiting(spark, work / "none", 0),
        f"{pending:,}, {_DUE} of them due": _Waiting(spark, work / "many", pending),
    }
    costs: dict[str, list[float]] = {name: [] for name in waiting}
    for number in range(1, _ROUNDS + 1):
        for name, one in waiting.items():
            costs[name].append(one.epoch(number))
    fired = [len(one.sink.records) for one in waiting.values()]
    if fired != [0, _DUE * _ROUNDS]:
        raise AssertionError(f"{fired} timers fired, expected 0 and {_DUE * _ROUNDS}")
    for one in waiting.values():
        one.close()
    return costs


def _wall(spark: SparkSession, store: Path, timers: int) -> list[float]:
    """How late each of them fired, in milliseconds."""
    sink = mw.sinks.Collect()
    p = mw.Pipeline("alarm")
    p.inject("in", Once())
    p.add(Alarm(), inputs={"in": mw.by_key}, outputs=["late"])
    p.sink("late", sink)
    deadline = time.monotonic() + 60
    with mw.start(p, store=store, spark=spark, progress=False):
        while len(sink.records) < timers and time.monotonic() < deadline:
            time.sleep(0.05)
    return [record.value / 1e3 for record in sink.records]
