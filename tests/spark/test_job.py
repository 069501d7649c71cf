"""`start` on a real Spark: a job that keeps running, is looked at, stopped and started again."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

import millwheel as mw
from millwheel.master.clock import WallClock
from tests.computations import Counter, Hooks, Windower, values
from tests.spark.counting import counting, in_order, records
from tests.spark.sources import Feed
from tests.spark.waiting import LIMIT, eventually

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def test_a_job_takes_up_what_comes_and_closes_windows_as_the_watermark_moves(spark: SparkSession) -> None:
    feed = Feed({"only": records(40)}, opened=5)
    p = mw.Pipeline("following")
    p.inject("in", feed)
    p.add(Windower(), inputs={"in": lambda record: "all"}, outputs=["windows"])
    sink = mw.sinks.Collect()
    p.sink("windows", sink)
    with mw.start(p, store="memory:", spark=spark) as job:
        eventually(lambda: job.status().records_in == 5)
        assert sink.records == []
        assert job.status().low_watermarks == {"Windower": 5 * mw.SECOND // 10}
        feed.opened = 25
        eventually(lambda: job.status().records_in == 25)
        assert [value["window"] for value in values(sink.records)] == [0, 1]
        feed.opened, feed.ended = 40, True
        eventually(lambda: job.status().low_watermarks == {"Windower": mw.MAX_TIME})
        assert job.wait(timeout=0) is None
        report = job.stop()
    assert report.records_in == 40
    assert [value["window"] for value in values(sink.records)] == [0, 1, 2, 3]


def test_wall_timers_fire_on_an_idle_pipeline(spark: SparkSession) -> None:
    def on_record(c: Hooks, record: mw.Record) -> None:
        c.set_timer("soon", c.now + 50 * mw.MILLISECOND, clock=mw.WALL)
        c.set_timer("not today", c.now + mw.DAY, clock=mw.WALL)

    def on_timer(c: Hooks, timer: mw.Timer) -> None:
        assert c.now >= timer.timestamp
        c.produce("out", timer.tag)

    p = mw.Pipeline("idle")
    p.inject("in", Feed({"only": records(3)}, opened=1))
    p.add(Hooks(on_record, on_timer), name="C", inputs={"in": mw.by("user")}, outputs=["out"])
    sink = mw.sinks.Collect()
    p.sink("out", sink)
    with mw.start(p, store="memory:", spark=spark) as job:
        eventually(lambda: len(sink.records) == 1)
        eventually(lambda: job.status().pending_wall_timers == 1)
    assert values(sink.records) == ["soon"]


def test_a_stopped_job_is_taken_up_by_the_next(spark: SparkSession, where: str) -> None:
    p, first = counting(mw.injectors.Records(records(60), per_epoch=5))
    with mw.start(p, store=where, spark=spark) as job:
        eventually(lambda: job.status().records_in >= 5)
        stopped = job.stop()
    p, second = counting(mw.injectors.Records(records(60)))
    with mw.start(p, store=where, spark=spark) as job:
        eventually(lambda: stopped.records_in + job.status().records_in == 60)
        eventually(lambda: job.status().low_watermarks == {"Counter": mw.MAX_TIME})
    p, whole = counting(mw.injectors.Records(records(60)))
    mw.run(p, store="memory:", spark=spark)
    assert in_order(first.records + second.records) == in_order(whole.records)


def test_leaving_the_block_stops_the_job_and_frees_the_store(spark: SparkSession, where: str) -> None:
    p, _ = counting(mw.injectors.Records(records(10)))
    with mw.start(p, store=where, spark=spark) as job:
        eventually(lambda: job.status().records_in == 10)
    p, _ = counting(mw.injectors.Records(records(12)))
    assert mw.run(p, store=where, spark=spark).records_in == 2
    assert job.wait(timeout=LIMIT) is not None


def test_a_started_job_does_not_drain_holds(spark: SparkSession) -> None:
    p = mw.Pipeline("held")
    p.inject("in", mw.injectors.Records(records(3)))
    p.add(Hooks(lambda c, r: c.hold(r.timestamp)), name="C", inputs={"in": mw.by("user")})
    p.add(Counter(), inputs={"in": mw.by("user")}, outputs=["counts"])
    with mw.start(p, store="memory:", spark=spark) as job:
        eventually(lambda: job.status().low_watermarks["Counter"] == mw.MAX_TIME)
        assert job.status().low_watermarks["C"] == 0


def test_a_wall_timer_that_one_run_left_fires_in_the_next_job(
    spark: SparkSession, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long the first run takes: the timer is an hour away, and the next job begins later."""

    def pipeline() -> tuple[mw.Pipeline, mw.sinks.Collect]:
        p = mw.Pipeline("left over")
        p.inject("in", mw.injectors.Records(records(1)))
        p.add(
            Hooks(
                lambda c, r: c.set_timer("w", c.now + mw.HOUR, clock=mw.WALL),
                lambda c, timer: c.produce("out", timer.tag),
            ),
            name="C",
            inputs={"in": mw.by("user")},
            outputs=["out"],
        )
        sink = mw.sinks.Collect()
        p.sink("out", sink)
        return p, sink

    p, first = pipeline()
    assert mw.run(p, store=where, spark=spark).pending_wall_timers == 1
    later = WallClock(lambda: time.time_ns() // 1_000 + 2 * mw.HOUR)
    monkeypatch.setattr(WallClock, "of_the_machine", lambda: later)
    p, second = pipeline()
    with mw.start(p, store=where, spark=spark, slots=3) as job:
        assert job.status().records_in == 0
        eventually(lambda: job.status().pending_wall_timers == 0)
    assert (values(first.records), values(second.records)) == ([], ["w"])
