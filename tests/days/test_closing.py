"""The end of a run that closes, and the run after it (semantics 9): day by day on one store."""

from __future__ import annotations

from typing import Any

import pytest

import millwheel as mw
from millwheel.master.journal import Journal
from millwheel.store.memory import MemoryStore
from millwheel.store.tools.check import check
from tests.computations import Echo, Hooks, Log, Windower, hooks, values
from tests.conftest import MakeHarness
from tests.store.driving import run


def _windows(**options: Any) -> mw.Pipeline:
    """Windows of ten, and of what they give windows of a hundred."""
    p = mw.Pipeline("windows")
    p.inject("in", mw.injectors.Records([]))
    p.add(Windower(size=10, stamp=-1), inputs={"in": mw.by("k")}, outputs=["windows"], **options)
    p.add(
        Windower("wide", size=100, stamp=-1),
        name="Wide",
        inputs={"windows": lambda r: "all"},
        outputs=["wide"],
        **options,
    )
    return p


def _counts(records: list[mw.Record]) -> list[tuple[int, int]]:
    return sorted((record.value["window"], record.value["count"]) for record in records)


def test_the_next_run_begins_where_event_time_really_was(harness: MakeHarness) -> None:
    h = harness(_windows(late="drop"))
    h.send("in", {"k": "a"}, timestamp=3)
    h.send("in", {"k": "a"}, timestamp=24)
    h.drain()
    assert h.low_watermark("Windower") == h.low_watermark("Wide") == mw.MAX_TIME
    h.reopen()
    assert h.low_watermark("Windower") == h.low_watermark("Wide") == 25


def test_a_record_at_the_watermark_that_was_left_is_on_time_and_an_older_one_is_late(
    harness: MakeHarness,
) -> None:
    p = mw.Pipeline("late")
    p.inject("in", mw.injectors.Records([]))
    p.add(Log(), inputs={"in": mw.by_key}, outputs=["log"])
    h = harness(p)
    h.send("in", "Monday", timestamp=24, key="k")
    h.drain()
    h.reopen()
    h.send("in", "late", timestamp=24, key="k")
    h.send("in", "Tuesday", timestamp=25, key="k")
    assert [line[1::2] for line in values(h.output("log"))] == [
        ["Monday", False],
        ["late", True],
        ["Tuesday", False],
    ]


def test_a_window_that_two_days_share_comes_once_for_each(harness: MakeHarness) -> None:
    h = harness(_windows(late="drop"))
    for time in (3, 24):
        h.send("in", {"k": "a"}, timestamp=time)
    h.drain()
    h.reopen()
    for time in (25, 29, 41):
        h.send("in", {"k": "a"}, timestamp=time)
    h.drain()
    assert _counts(h.output("windows")) == [(0, 1), (2, 1), (2, 2), (4, 1)]
    assert _counts(h.output("wide")) == [(0, 2), (0, 2)]
    assert set(h.status().dropped.values()) == {0}


def test_a_stream_without_a_record_is_as_it_was_at_the_beginning(harness: MakeHarness) -> None:
    p = mw.Pipeline("two")
    for stream in ("left", "right"):
        p.inject(stream, mw.injectors.Records([]))
        p.add(Log(), name=stream.title(), inputs={stream: mw.by_key}, outputs=["log"])
    p.add(Log(), name="Both", inputs={"left": mw.by_key, "right": mw.by_key}, outputs=["log"])
    h = harness(p)
    h.send("left", 1, timestamp=7)
    h.drain()
    h.reopen()
    assert h.status().low_watermarks == {"Left": 8, "Right": mw.MIN_TIME, "Both": mw.MIN_TIME}


def test_several_injectors_of_one_stream_leave_it_at_the_newest_timestamp_of_all() -> None:
    def pipeline(*parts: list[int]) -> mw.Pipeline:
        p = mw.Pipeline("parts")
        for times in parts:
            p.inject("in", mw.injectors.Records([mw.Record(value=t, timestamp=t) for t in times]))
        p.add(Log(), inputs={"in": mw.by_key}, outputs=["log"], late="drop")
        return p

    store = MemoryStore(1)
    run(pipeline([5], [90], []), store)
    assert Journal(store).recover().commit.watermarks["Log"].low == 91
    report = run(pipeline([5, 91], [90, 100], [95]), store)
    assert (report.records_in, report.dropped) == (3, {"Log": 0})


def test_a_run_that_is_stopped_is_as_it_was(harness: MakeHarness) -> None:
    h = harness(_windows())
    h.send("in", {"k": "a"}, timestamp=24)
    h.advance("in", 22)
    h.reopen()
    assert h.low_watermark("Windower") == 22
    assert [timer.timestamp for timer in h.timers("Windower", "a")] == [30]
    h.send("in", {"k": "a"}, timestamp=25)
    h.advance("in", 30)
    assert _counts(h.output("windows")) == [(2, 2)]


def test_a_crash_after_the_drain_leaves_the_watermarks_at_their_end(harness: MakeHarness) -> None:
    h = harness(_windows())
    h.send("in", {"k": "a"}, timestamp=24)
    h.drain()
    h.crash()
    assert h.low_watermark("Windower") == mw.MAX_TIME


def test_a_record_that_comes_again_on_the_next_day_is_a_duplicate(harness: MakeHarness) -> None:
    h = harness(_windows())
    h.send("in", {"k": "a"}, timestamp=24, id="x")
    h.drain()
    h.reopen()
    h.send("in", {"k": "a"}, timestamp=24, id="x")
    assert h.status().duplicates["Windower"] == 1


def test_a_hold_that_nobody_released_ends_with_the_run(harness: MakeHarness) -> None:
    def on_record(c: Hooks, record: mw.Record) -> None:
        if record.value == "hold":
            c.hold(record.timestamp, "first")
            c.hold(record.timestamp + 1, "second")
            c.state["held"] = True
        c.produce("out", record.late)

    h = harness(hooks(on_record))
    h.send("in", "hold", timestamp=5, key="k")
    h.send("in", "plain", timestamp=20, key="l")
    h.advance("in", 10)
    assert h.low_watermark("C") == 5
    h.drain()
    assert h.status().unreleased_holds == 2
    h.reopen()
    assert h.low_watermark("C") == 21
    assert h.state("C", "k") == {"held": True}
    h.advance("in", 40)
    assert h.low_watermark("C") == 40


def test_a_key_that_has_nothing_but_a_hold_is_gone_after_the_run() -> None:
    def on_record(c: Hooks, record: mw.Record) -> None:
        c.hold(record.timestamp)
        del c.state
        c.hold(record.timestamp)

    p = mw.Pipeline("holding")
    p.inject("in", mw.injectors.Records([mw.Record(value=0, timestamp=3, key=k) for k in "abcdef"]))
    p.add(Hooks(on_record), name="C", inputs={"in": mw.by_key})
    store = MemoryStore(2)
    report = run(p, store, slots=2)
    assert report.unreleased_holds == 6
    assert report.low_watermarks == {"C": mw.MAX_TIME}
    found = check(store)
    assert not found.problems, found
    assert all(not list(shard.scan(b"R", b"S")) for shard in store.shards)  # type: ignore[attr-defined]


def test_percentile_watermarks_go_back_as_the_exact_ones_do(harness: MakeHarness) -> None:
    p = mw.Pipeline("fast")
    p.inject("in", mw.injectors.Records([]))
    p.add(Log(), inputs={"in": mw.by_key}, outputs=["log"], watermark=0.9, late="drop")
    p.add(
        Echo("more"), name="Behind", inputs={"log": mw.by_key}, outputs=["more"], watermark=0.9, late="drop"
    )
    h = harness(p)
    h.send("in", 1, timestamp=7)
    h.drain()
    h.reopen()
    assert set(h.status().input_watermarks.values()) == {8}
    h.send("in", 2, timestamp=8)
    assert [line[1] for line in values(h.output("log"))] == [1, 2]
    assert h.status().late == {"Log": 0, "Behind": 0}


def test_reopening_inside_of_an_epoch_is_refused(harness: MakeHarness) -> None:
    h = harness(_windows())
    with h.epoch(), pytest.raises(mw.PipelineError, match="outside"):
        h.reopen()
