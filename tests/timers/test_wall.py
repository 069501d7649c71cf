"""Wall timers: they follow the wall clock, hold nothing, and are reported when a run ends."""

from __future__ import annotations

from typing import Any

import pytest

import millwheel as mw
from tests.computations import Hooks, hooks, values
from tests.conftest import MakeHarness


def wall_pipeline() -> mw.Pipeline:
    def on_record(c: Hooks, record: mw.Record) -> None:
        c.set_timer("wall", record.value, clock=mw.WALL)

    return hooks(on_record, lambda c, timer: c.produce("out", [timer.tag, timer.timestamp, c.now]))


def test_a_wall_timer_fires_when_now_reaches_it(harness: MakeHarness) -> None:
    h = harness(wall_pipeline())
    h.send("in", 60, timestamp=0)
    h.advance_wall(59)
    assert h.output("out") == []
    h.advance_wall(60)
    assert values(h.output("out")) == [["wall", 60, 60]]


def test_wall_time_starts_at_zero_and_a_passed_wall_timer_fires_at_once(harness: MakeHarness) -> None:
    h = harness(wall_pipeline())
    h.send("in", 0, timestamp=0)
    assert values(h.output("out")) == [["wall", 0, 0]]
    h.advance_wall(100)
    h.send("in", 40, timestamp=0)
    assert values(h.output("out")) == [["wall", 0, 0], ["wall", 40, 100]]


def test_the_default_timestamp_of_a_production_is_that_of_the_wall_timer(harness: MakeHarness) -> None:
    h = harness(wall_pipeline())
    h.send("in", 60, timestamp=7)
    h.advance_wall(90)
    assert [record.timestamp for record in h.output("out")] == [60]


def test_the_watermark_does_not_fire_wall_timers(harness: MakeHarness) -> None:
    h = harness(wall_pipeline())
    h.send("in", 60, timestamp=0)
    h.advance("in", 1_000)
    assert h.output("out") == []


def test_wall_timers_hold_no_watermark(harness: MakeHarness) -> None:
    h = harness(wall_pipeline())
    h.send("in", 60, timestamp=0)
    h.advance("in", 1_000)
    assert h.low_watermark("C") == 1_000


def test_a_drain_reports_wall_timers_and_does_not_wait_for_them(harness: MakeHarness) -> None:
    h = harness(wall_pipeline())
    h.send("in", 60, timestamp=0, key="a")
    h.send("in", 70, timestamp=0, key="b")
    h.drain()
    assert h.output("out") == []
    assert h.status().pending_wall_timers == 2
    assert h.low_watermark("C") == mw.MAX_TIME
    h.advance_wall(60)
    assert h.status().pending_wall_timers == 1
    assert len(h.output("out")) == 1


def test_the_wall_clock_does_not_go_back(harness: MakeHarness) -> None:
    h = harness(wall_pipeline())
    h.advance_wall(100)
    h.advance_wall(10)
    h.send("in", 50, timestamp=0)
    assert values(h.output("out")) == [["wall", 50, 100]]


def test_now_is_one_value_in_all_hooks_of_an_epoch(harness: MakeHarness) -> None:
    h = harness(
        hooks(
            lambda c, record: (c.produce("out", c.now), c.set_timer("t", 5, clock=mw.WALL))[0],
            lambda c, timer: c.produce("out", c.now),
        )
    )
    with h.epoch():
        h.send("in", None, timestamp=0, key="a")
        h.advance_wall(77)
        h.send("in", None, timestamp=0, key="b")
    assert values(h.output("out")) == [77] * 4


@pytest.mark.parametrize(
    ("tag", "time"), [("t", 5.0), ("t", True), (b"t", 5), (["t"], 5)], ids=["float", "bool", "bytes", "list"]
)
def test_a_timer_that_is_set_already_is_looked_at_no_less(harness: MakeHarness, tag: Any, time: Any) -> None:
    def twice(c: Hooks, record: mw.Record) -> None:
        c.set_timer("t", int(time))
        c.set_timer("t", int(time))
        c.set_timer(tag, time)

    with pytest.raises(mw.UserCodeError, match="a timer's"):
        harness(hooks(twice)).send("in", 0, 0, key="k")


def test_a_timer_that_changes_its_clock_and_back_is_the_last_one(harness: MakeHarness) -> None:
    def change(c: Hooks, record: mw.Record) -> None:
        for clock in record.value:
            c.set_timer("t", 5, clock=clock)

    h = harness(hooks(change, lambda c, timer: c.produce("out", timer.clock)))
    h.send("in", [mw.WATERMARK, mw.WALL, mw.WATERMARK], 0, key="a")
    h.send("in", [mw.WATERMARK, mw.WALL], 0, key="b")
    h.advance("in", 10)
    assert [(record.key, record.value) for record in h.output("out")] == [("a", mw.WATERMARK)]
    h.advance_wall(10)
    assert [record.value for record in h.output("out")] == [mw.WATERMARK, mw.WALL]
