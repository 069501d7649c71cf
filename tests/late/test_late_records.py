"""Semantics 4: which records are late, and what becomes of them."""

from __future__ import annotations

import pytest

import millwheel as mw
from tests.computations import Hooks, Log, hooks, single, values
from tests.conftest import MakeHarness


def log_pipeline(**options: str) -> mw.Pipeline:
    return single(Log(), outputs=["log"], **options)


def test_a_record_behind_the_watermark_is_late(harness: MakeHarness) -> None:
    h = harness(log_pipeline())
    h.advance("in", 10)
    h.send("in", "behind", timestamp=9)
    assert values(h.output("log")) == [["", "behind", 9, True]]
    assert h.status().late["C"] == 1


@pytest.mark.parametrize("timestamp", [10, 11, mw.MAX_TIME])
def test_a_record_at_or_ahead_of_the_watermark_is_not_late(timestamp: int, harness: MakeHarness) -> None:
    h = harness(log_pipeline())
    h.advance("in", 10)
    h.send("in", 1, timestamp=timestamp)
    assert [value[3] for value in values(h.output("log"))] == [False]
    assert h.status().late["C"] == 0


def test_nothing_is_late_before_the_injector_has_spoken(harness: MakeHarness) -> None:
    h = harness(log_pipeline())
    h.send("in", 1, timestamp=mw.MIN_TIME + 1)
    assert [value[3] for value in values(h.output("log"))] == [False]


def test_lateness_looks_at_the_watermark_before_the_epoch(harness: MakeHarness) -> None:
    h = harness(log_pipeline())
    h.advance("in", 10)
    with h.epoch():
        h.advance("in", 100)
        h.send("in", "on time", timestamp=50)
        h.send("in", "late", timestamp=5)
    assert sorted(values(h.output("log"))) == [["", "late", 5, True], ["", "on time", 50, False]]


def test_a_delivered_late_record_is_processed_and_counted(harness: MakeHarness) -> None:
    h = harness(log_pipeline(late="deliver"))
    h.advance("in", 10)
    h.send("in", 1, timestamp=5)
    status = h.status()
    assert (status.records["C"], status.late["C"], status.dropped["C"]) == (1, 1, 0)


def test_a_dropped_late_record_is_counted_and_reaches_no_hook(harness: MakeHarness) -> None:
    h = harness(log_pipeline(late="drop"))
    h.advance("in", 10)
    h.send("in", 1, timestamp=5)
    h.send("in", 2, timestamp=10)
    status = h.status()
    assert values(h.output("log")) == [["", 2, 10, False]]
    assert (status.records["C"], status.late["C"], status.dropped["C"]) == (1, 1, 1)


def test_a_dropped_record_leaves_no_state(harness: MakeHarness) -> None:
    h = harness(hooks(lambda c, record: c.state.update(seen=True), late="drop"))
    h.advance("in", 10)
    h.send("in", 1, timestamp=5, key="a")
    assert h.state("C", "a") is None


def test_lateness_is_judged_by_each_computation_for_itself(harness: MakeHarness) -> None:
    p = mw.Pipeline("two")
    p.inject("fast", mw.injectors.Records([]))
    p.inject("slow", mw.injectors.Records([]))
    p.add(Log(), name="one", inputs={"fast": mw.by_key}, outputs=["log"])
    p.add(Log(), name="both", inputs={"fast": mw.by_key, "slow": mw.by_key}, outputs=["log"])
    h = harness(p)
    h.advance("fast", 10)
    h.advance("slow", 3)
    h.send("fast", 1, timestamp=5)
    assert h.status().late == {"one": 1, "both": 0}


def test_a_late_record_may_set_a_timer_for_its_closed_window(harness: MakeHarness) -> None:
    def on_record(c: Hooks, record: mw.Record) -> None:
        c.state["n"] = c.state.get("n", 0) + 1
        c.set_timer("close", 10)

    h = harness(hooks(on_record, lambda c, timer: c.produce("out", c.state.pop("n"))))
    h.send("in", 1, timestamp=5)
    h.advance("in", 20)
    h.send("in", 1, timestamp=6)
    assert values(h.output("out")) == [1, 1]


def test_a_record_that_is_late_and_a_duplicate_is_a_duplicate(harness: MakeHarness) -> None:
    for late in ("deliver", "drop"):
        h = harness(log_pipeline(late=late))
        h.send("in", 1, timestamp=5, id="x")
        h.advance("in", 10)
        h.send("in", 1, timestamp=5, id="x")
        status = h.status()
        assert (status.duplicates["C"], status.late["C"], status.dropped["C"]) == (1, 0, 0)


def test_lateness_survives_a_crash(harness: MakeHarness) -> None:
    h = harness(log_pipeline(late="drop"))
    h.advance("in", 10)
    h.crash()
    h.send("in", 1, timestamp=5)
    assert h.status().dropped["C"] == 1


def test_after_a_drain_every_record_is_late(harness: MakeHarness) -> None:
    h = harness(log_pipeline())
    h.drain()
    h.send("in", 1, timestamp=mw.MAX_TIME - 1)
    assert [value[3] for value in values(h.output("log"))] == [True]


def test_counts_of_late_records_add_up_over_keys(harness: MakeHarness) -> None:
    h = harness(log_pipeline(late="drop"))
    h.advance("in", 10)
    with h.epoch():
        for n in range(20):
            h.send("in", n, timestamp=n, key=f"key {n}")
    assert (h.status().late["C"], h.status().dropped["C"], h.status().records["C"]) == (10, 10, 10)
