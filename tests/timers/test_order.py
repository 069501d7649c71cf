"""Semantics 5, 6 and 11: when timers fire, and in which order."""

from __future__ import annotations

import itertools

import millwheel as mw
from tests.computations import Hooks, hooks, values
from tests.conftest import MakeHarness


def set_all(c: Hooks, record: mw.Record) -> None:
    """The record's value is a list of (tag, time, clock)."""
    for tag, time, clock in record.value:
        c.set_timer(tag, time, clock)


def log_timer(c: Hooks, timer: mw.Timer) -> None:
    c.produce("out", [timer.tag, timer.timestamp, timer.clock])


def test_due_timers_fire_by_timestamp(harness: MakeHarness) -> None:
    h = harness(hooks(set_all, log_timer))
    h.send("in", [["a", 30, mw.WATERMARK], ["b", 10, mw.WATERMARK], ["c", 20, mw.WATERMARK]], timestamp=0)
    h.advance("in", 30)
    assert [value[0] for value in values(h.output("out"))] == ["b", "c", "a"]


def test_timers_of_one_timestamp_fire_by_tag(harness: MakeHarness) -> None:
    for order in itertools.permutations("abc"):
        h = harness(hooks(set_all, log_timer))
        h.send("in", [[tag, 10, mw.WATERMARK] for tag in order], timestamp=0)
        h.advance("in", 10)
        assert [value[0] for value in values(h.output("out"))] == ["a", "b", "c"]


def test_tags_are_ordered_as_text_not_as_numbers(harness: MakeHarness) -> None:
    h = harness(hooks(set_all, log_timer))
    h.send("in", [["9", 10, mw.WATERMARK], ["10", 10, mw.WATERMARK], ["", 10, mw.WATERMARK]], timestamp=0)
    h.advance("in", 10)
    assert [value[0] for value in values(h.output("out"))] == ["", "10", "9"]


def test_a_watermark_timer_is_due_when_the_watermark_reaches_it(harness: MakeHarness) -> None:
    h = harness(hooks(set_all, log_timer))
    h.send("in", [["a", 10, mw.WATERMARK]], timestamp=0)
    h.advance("in", 9)
    assert h.output("out") == []
    h.advance("in", 10)
    assert values(h.output("out")) == [["a", 10, mw.WATERMARK]]


def test_a_timer_fires_once(harness: MakeHarness) -> None:
    h = harness(hooks(set_all, log_timer))
    h.send("in", [["a", 10, mw.WATERMARK]], timestamp=0)
    h.advance("in", 10)
    h.advance("in", 11)
    h.advance_wall(100)
    h.drain()
    assert len(h.output("out")) == 1
    assert h.timers("C", "") == []


def test_timers_of_both_clocks_share_one_order(harness: MakeHarness) -> None:
    h = harness(hooks(set_all, log_timer))
    timers = [["w2", 20, mw.WALL], ["e1", 10, mw.WATERMARK], ["w0", 5, mw.WALL], ["e3", 30, mw.WATERMARK]]
    h.send("in", timers, timestamp=0)
    with h.epoch():
        h.advance("in", 30)
        h.advance_wall(30)
    assert [value[0] for value in values(h.output("out"))] == ["w0", "e1", "w2", "e3"]


def test_both_clocks_at_one_timestamp_are_ordered_by_tag(harness: MakeHarness) -> None:
    h = harness(hooks(set_all, log_timer))
    timers = [["c", 10, mw.WATERMARK], ["b", 10, mw.WALL], ["a", 10, mw.WATERMARK]]
    h.send("in", timers, timestamp=0)
    with h.epoch():
        h.advance_wall(10)
        h.advance("in", 10)
    assert [value[0] for value in values(h.output("out"))] == ["a", "b", "c"]


def test_records_come_before_the_timers_of_their_epoch(harness: MakeHarness) -> None:
    def on_record(c: Hooks, record: mw.Record) -> None:
        c.produce("out", f"record {record.value} at {c.low_watermark}")
        c.set_timer("t", 10)

    def on_timer(c: Hooks, timer: mw.Timer) -> None:
        c.produce("out", f"timer at {c.low_watermark}")

    h = harness(hooks(on_record, on_timer))
    h.advance("in", 1)
    with h.epoch():
        h.send("in", 1, timestamp=50)
        h.advance("in", 40)
        h.send("in", 2, timestamp=5)
    assert values(h.output("out")) == ["record 1 at 1", "record 2 at 1", "timer at 40"]


def test_a_timer_set_for_a_time_already_passed_fires_in_the_same_epoch(harness: MakeHarness) -> None:
    def on_record(c: Hooks, record: mw.Record) -> None:
        c.set_timer("past", record.timestamp)
        c.produce("out", "record")

    h = harness(hooks(on_record, lambda c, timer: c.produce("out", timer.tag)))
    h.advance("in", 100)
    with h.epoch():
        h.send("in", 1, timestamp=50)
        h.send("in", 2, timestamp=60)
    assert values(h.output("out")) == ["record", "record", "past"]
    assert h.output("out")[-1].timestamp == 60


def test_a_timer_set_while_firing_takes_its_place_in_the_order(harness: MakeHarness) -> None:
    def on_timer(c: Hooks, timer: mw.Timer) -> None:
        log_timer(c, timer)
        if timer.tag == "a":
            c.set_timer("between", 15)
            c.set_timer("past", 3)
            c.set_timer("later", 100)

    h = harness(hooks(set_all, on_timer))
    h.send("in", [["a", 10, mw.WATERMARK], ["b", 20, mw.WATERMARK]], timestamp=0)
    h.advance("in", 30)
    assert [value[0] for value in values(h.output("out"))] == ["a", "past", "between", "b"]
    assert h.timers("C", "") == [mw.Timer("later", 100, mw.WATERMARK)]


def test_a_timer_that_sets_itself_runs_up_to_the_watermark(harness: MakeHarness) -> None:
    def on_timer(c: Hooks, timer: mw.Timer) -> None:
        log_timer(c, timer)
        c.set_timer(timer.tag, timer.timestamp + 10)

    h = harness(hooks(set_all, on_timer))
    h.send("in", [["tick", 10, mw.WATERMARK]], timestamp=0)
    h.advance("in", 45)
    assert [value[1] for value in values(h.output("out"))] == [10, 20, 30, 40]
    assert h.timers("C", "") == [mw.Timer("tick", 50)]
    h.advance("in", 50)
    assert [value[1] for value in values(h.output("out"))] == [10, 20, 30, 40, 50]


def test_a_firing_timer_may_clear_the_next_one(harness: MakeHarness) -> None:
    def on_timer(c: Hooks, timer: mw.Timer) -> None:
        log_timer(c, timer)
        c.clear_timer("b")

    h = harness(hooks(set_all, on_timer))
    h.send("in", [[tag, time, mw.WATERMARK] for tag, time in (("a", 1), ("b", 2), ("c", 3))], timestamp=0)
    h.advance("in", 30)
    assert [value[0] for value in values(h.output("out"))] == ["a", "c"]


def test_a_firing_timer_may_move_the_next_one_out_of_reach(harness: MakeHarness) -> None:
    def on_timer(c: Hooks, timer: mw.Timer) -> None:
        log_timer(c, timer)
        if timer.tag == "a":
            c.set_timer("b", 99)

    h = harness(hooks(set_all, on_timer))
    h.send("in", [["a", 1, mw.WATERMARK], ["b", 2, mw.WATERMARK]], timestamp=0)
    h.advance("in", 30)
    assert [value[0] for value in values(h.output("out"))] == ["a"]
    h.advance("in", 99)
    assert values(h.output("out"))[1:] == [["b", 99, mw.WATERMARK]]


def test_setting_a_timer_again_moves_it(harness: MakeHarness) -> None:
    h = harness(hooks(set_all, log_timer))
    h.send("in", [["a", 10, mw.WATERMARK]], timestamp=0)
    h.send("in", [["a", 20, mw.WATERMARK]], timestamp=0)
    assert h.timers("C", "") == [mw.Timer("a", 20)]
    h.advance("in", 15)
    assert h.output("out") == []
    h.send("in", [["a", 17, mw.WATERMARK]], timestamp=15)
    h.advance("in", 17)
    assert values(h.output("out")) == [["a", 17, mw.WATERMARK]]
    h.drain()
    assert len(h.output("out")) == 1


def test_clearing_removes_a_timer_and_clearing_nothing_is_fine(harness: MakeHarness) -> None:
    def on_record(c: Hooks, record: mw.Record) -> None:
        if record.value == "set":
            c.set_timer("a", 10)
            c.set_timer("w", 10, clock=mw.WALL)
        c.clear_timer("nobody")
        if record.value == "clear":
            c.clear_timer("a")
            c.clear_timer("w")

    h = harness(hooks(on_record, log_timer))
    h.send("in", "set", timestamp=0)
    assert len(h.timers("C", "")) == 2
    h.send("in", "clear", timestamp=0)
    assert h.timers("C", "") == []
    h.advance_wall(20)
    h.drain()
    assert h.output("out") == []


def test_a_tag_names_one_timer_whatever_its_clock(harness: MakeHarness) -> None:
    h = harness(hooks(set_all, log_timer))
    h.send("in", [["a", 10, mw.WATERMARK], ["a", 20, mw.WALL]], timestamp=0)
    assert h.timers("C", "") == [mw.Timer("a", 20, mw.WALL)]
    h.advance("in", 15)
    assert h.output("out") == []
    h.advance_wall(20)
    h.drain()
    assert values(h.output("out")) == [["a", 20, mw.WALL]]


def test_moving_a_wall_timer_to_the_watermark_drops_it_from_the_wall_clock(harness: MakeHarness) -> None:
    h = harness(hooks(set_all, log_timer))
    h.send("in", [["a", 10, mw.WALL]], timestamp=0)
    assert h.status().pending_wall_timers == 1
    h.send("in", [["a", 30, mw.WATERMARK]], timestamp=0)
    assert h.status().pending_wall_timers == 0
    h.advance_wall(50)
    assert h.output("out") == []
    h.advance("in", 30)
    assert values(h.output("out")) == [["a", 30, mw.WATERMARK]]


def test_keys_have_timers_of_their_own(harness: MakeHarness) -> None:
    def on_timer(c: Hooks, timer: mw.Timer) -> None:
        c.produce("out", [c.key, timer.timestamp])

    h = harness(hooks(set_all, on_timer))
    h.send("in", [["t", 10, mw.WATERMARK]], timestamp=0, key="a")
    h.send("in", [["t", 20, mw.WATERMARK]], timestamp=0, key="b")
    h.advance("in", 10)
    assert values(h.output("out")) == [["a", 10]]
    assert h.timers("C", "b") == [mw.Timer("t", 20)]
    h.advance("in", 20)
    assert values(h.output("out")) == [["a", 10], ["b", 20]]


def test_timers_lists_in_the_order_of_firing(harness: MakeHarness) -> None:
    h = harness(hooks(set_all, log_timer))
    h.send("in", [["z", 10, mw.WALL], ["a", 20, mw.WATERMARK], ["y", 10, mw.WATERMARK]], timestamp=0)
    assert h.timers("C", "") == [
        mw.Timer("y", 10, mw.WATERMARK),
        mw.Timer("z", 10, mw.WALL),
        mw.Timer("a", 20, mw.WATERMARK),
    ]


def test_timers_at_the_ends_of_time_fire(harness: MakeHarness) -> None:
    h = harness(hooks(set_all, log_timer))
    h.send("in", [["first", mw.MIN_TIME, mw.WATERMARK], ["last", mw.MAX_TIME, mw.WATERMARK]], timestamp=0)
    assert values(h.output("out")) == [["first", mw.MIN_TIME, mw.WATERMARK]]
    h.advance("in", mw.MAX_TIME - 1)
    assert len(h.output("out")) == 1
    h.drain()
    assert values(h.output("out"))[1:] == [["last", mw.MAX_TIME, mw.WATERMARK]]
