"""A window closes in the very epoch in which the injector's watermark passes its end, however deep it is."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import millwheel as mw
from millwheel.master.driver import Driver
from millwheel.master.executor import Executor
from millwheel.master.local_executor import LocalExecutor
from millwheel.master.options import Options
from millwheel.model.graph import build
from millwheel.model.injector import Injector, Offset
from millwheel.store.lmdb.lmdb_store import LmdbStore
from millwheel.worker.step import Worker
from tests.computations import Windower, values

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WINDOW = 10 * mw.SECOND
USERS = 6


class TwoWindows(Injector):
    """Two windows of records, all there from the start; the watermark is set by hand, on the driver."""

    bounded = False

    def __init__(self) -> None:
        self.records = [
            mw.Record(value={"user": n % USERS}, timestamp=n * mw.SECOND // 2)
            for n in range(2 * 2 * WINDOW // mw.SECOND)
        ]
        self.watermark = 0

    def poll(self) -> Mapping[str, Offset]:
        return {"one": len(self.records)}

    def read(self, partition: str, start: Offset, end: Offset) -> Iterable[mw.Record]:
        return self.records[start or 0 : end]

    def low_watermark(self, partition: str, offset: Offset) -> int:
        return self.watermark

    def bound(self, partition: str, start: Offset, end: Offset, records: int) -> Offset:
        return min(end, (start or 0) + records)


class Roller(mw.Computation):
    """Adds up the counts of windows that others closed, in a window of the same length."""

    def __init__(self, stream: str) -> None:
        self.stream = stream

    def process_record(self, record: mw.Record) -> None:
        assert not record.late
        bucket = record.timestamp // WINDOW
        self.state[bucket] = self.state.get(bucket, 0) + record.value["count"]
        self.set_timer(str(bucket), (bucket + 1) * WINDOW)

    def process_timer(self, timer: mw.Timer) -> None:
        value = {"key": self.key, "window": int(timer.tag), "count": self.state.pop(int(timer.tag))}
        self.produce(self.stream, value, timestamp=timer.timestamp - 1)


def half(record: mw.Record) -> str:
    return str(int(record.value["key"]) % 2)


def everything(record: mw.Record) -> str:
    return "all"


class Running:
    """By user, then re-keyed by half, then re-keyed to one: three levels."""

    def __init__(self, path: Path, slots: int, spark: SparkSession | None = None) -> None:
        self.injector, self.sink = TwoWindows(), mw.sinks.Collect()
        p = mw.Pipeline("deep")
        p.inject("in", self.injector)
        p.add(Windower(size=WINDOW, stamp=-1), inputs={"in": mw.by("user")}, outputs=["windows"])
        p.add(Roller("halves"), name="Halves", inputs={"windows": half}, outputs=["halves"])
        p.add(Roller("totals"), name="Totals", inputs={"halves": everything}, outputs=["totals"])
        p.sink("totals", self.sink)
        graph = build(p)
        assert len(graph.levels) == 3
        store = LmdbStore(path, shards=1 << (slots - 1).bit_length())
        # Below 0, not at 0: an epoch that reads nothing and only fires timers is to be wide, too.
        self.driver = Driver(
            graph,
            store,
            Options(slots=slots, compact_below=-1, step_budget=math.inf),
            clock=lambda: 0,
            owner="a test",
        )
        self.executor: Any
        if spark is None:
            self.executor = LocalExecutor(Worker(graph, self.driver.numbers, store))
        else:
            from millwheel.spark.job_executor import SparkExecutor

            self.executor = SparkExecutor(spark.sparkContext, graph, self.driver.numbers, store)

    def epoch(self) -> None:
        executor: Executor = self.executor
        plan = self.driver.next_plan()
        assert plan is not None
        assert not plan.compact
        self.driver.run(plan, executor)

    def windows(self) -> list[tuple[int, int]]:
        return [(value["window"], value["count"]) for value in values(self.sink.records)]

    def close(self) -> None:
        self.driver.close()
        if not isinstance(self.executor, LocalExecutor):
            self.executor.close()


def closes_in_one_epoch(running: Running) -> None:
    try:
        running.epoch()
        assert running.windows() == []
        running.injector.watermark = WINDOW - 1
        assert running.driver.next_plan() is None
        running.injector.watermark = WINDOW
        running.epoch()
        assert running.windows() == [(0, 20)]
        assert running.driver.next_plan() is None
        running.injector.watermark = 2 * WINDOW
        running.epoch()
        assert running.windows() == [(0, 20), (1, 20)]
        assert running.driver.next_plan() is None
        assert set(running.driver.authority.lows.values()) == {2 * WINDOW}
    finally:
        running.close()


@pytest.mark.parametrize("slots", [1, 3])
def test_a_window_two_re_keyed_levels_deep_closes_in_one_epoch(slots: int, tmp_path: Path) -> None:
    closes_in_one_epoch(Running(tmp_path / "store", slots))


@pytest.mark.parametrize("slots", [1, 3])
def test_a_window_closes_in_the_epoch_that_reads_its_records(slots: int, tmp_path: Path) -> None:
    running = Running(tmp_path / "store", slots)
    running.injector.watermark = WINDOW
    running.epoch()
    assert running.windows() == [(0, 20)]
    assert running.driver.next_plan() is None
    running.close()


@pytest.mark.spark
@pytest.mark.parametrize("slots", [1, 3])
def test_a_window_two_re_keyed_levels_deep_closes_in_one_wide_epoch_on_spark(
    slots: int, spark: SparkSession, tmp_path: Path
) -> None:
    closes_in_one_epoch(Running(tmp_path / "store", slots, spark))
