"""Semantics 7 and 11: productions' timestamps, and those below the low watermark."""

from __future__ import annotations

import pytest

import millwheel as mw
from tests.computations import Hooks, Log, hooks, values
from tests.conftest import MakeHarness


def produce_at(c: Hooks, record: mw.Record) -> None:
    c.produce("out", "value", timestamp=record.value)


def with_log(p: mw.Pipeline, late: str = "deliver", chained: bool = False) -> mw.Pipeline:
    key = mw.by_key if chained else lambda record: "all"
    p.add(Log(), inputs={"out": key}, outputs=["log"], late=late)
    return p


def test_the_default_timestamp_is_that_of_the_record_in_hand(harness: MakeHarness) -> None:
    h = harness(hooks(lambda c, record: c.produce("out", 1)))
    h.send("in", None, timestamp=7)
    assert [record.timestamp for record in h.output("out")] == [7]


def test_the_default_timestamp_is_that_of_the_timer_in_hand(harness: MakeHarness) -> None:
    h = harness(hooks(lambda c, record: c.set_timer("t", 10), lambda c, timer: c.produce("out", 1)))
    h.send("in", None, timestamp=7)
    h.advance("in", 50)
    assert [record.timestamp for record in h.output("out")] == [10]


def test_timestamp_zero_is_a_timestamp(harness: MakeHarness) -> None:
    h = harness(hooks(lambda c, record: c.produce("out", 1, timestamp=0)))
    h.send("in", None, timestamp=7)
    assert [record.timestamp for record in h.output("out")] == [0]


@pytest.mark.parametrize("chained", [False, True])
def test_a_production_below_the_low_watermark_is_delivered_late_and_counted(
    chained: bool, harness: MakeHarness
) -> None:
    h = harness(with_log(hooks(produce_at), chained=chained))
    h.advance("in", 10)
    h.send("in", 9, timestamp=10)
    assert [value[2:] for value in values(h.output("log"))] == [[9, True]]
    status = h.status()
    assert (status.produced_late["C"], status.late["Log"], status.produced["C"]) == (1, 1, 1)


@pytest.mark.parametrize("chained", [False, True])
def test_a_production_at_the_low_watermark_is_not_late(chained: bool, harness: MakeHarness) -> None:
    h = harness(with_log(hooks(produce_at), chained=chained))
    h.advance("in", 10)
    h.send("in", 10, timestamp=10)
    assert [value[2:] for value in values(h.output("log"))] == [[10, False]]
    assert (h.status().produced_late["C"], h.status().late["Log"]) == (0, 0)


@pytest.mark.parametrize("chained", [False, True])
def test_a_late_production_is_dropped_by_a_consumer_that_drops(chained: bool, harness: MakeHarness) -> None:
    h = harness(with_log(hooks(produce_at), late="drop", chained=chained))
    h.advance("in", 10)
    h.send("in", 9, timestamp=10)
    assert h.output("log") == []
    assert len(h.output("out")) == 1
    assert (h.status().late["Log"], h.status().dropped["Log"]) == (1, 1)


@pytest.mark.parametrize("chained", [False, True])
def test_a_production_is_judged_by_the_watermark_before_the_epoch(
    chained: bool, harness: MakeHarness
) -> None:
    h = harness(with_log(hooks(produce_at), chained=chained))
    h.advance("in", 10)
    with h.epoch():
        h.send("in", 20, timestamp=20)
        h.advance("in", 100)
    assert [value[2:] for value in values(h.output("log"))] == [[20, False]]
    assert h.status().produced_late["C"] == 0


@pytest.mark.parametrize("chained", [False, True])
def test_a_wall_timer_s_production_is_judged_by_the_watermark_before_the_epoch(
    chained: bool, harness: MakeHarness
) -> None:
    p = hooks(
        lambda c, record: c.set_timer("w", 60, clock=mw.WALL),
        lambda c, timer: c.produce("out", "value", timestamp=20),
    )
    h = harness(with_log(p, chained=chained))
    h.send("in", None, timestamp=0)
    h.advance("in", 10)
    with h.epoch():
        h.advance("in", 100)
        h.advance_wall(60)
    assert [value[2:] for value in values(h.output("log"))] == [[20, False]]
    assert (h.status().produced_late["C"], h.status().late["Log"]) == (0, 0)


def test_a_late_record_passed_on_with_its_own_timestamp_is_late_downstream_too(harness: MakeHarness) -> None:
    p = hooks(lambda c, record: c.produce("out", record.late))
    h = harness(with_log(p))
    h.advance("in", 10)
    h.send("in", None, timestamp=3)
    assert values(h.output("log")) == [["all", True, 3, True]]


def test_a_production_of_the_producer_s_own_low_watermark_may_be_below_its_input(
    harness: MakeHarness,
) -> None:
    def on_record(c: Hooks, record: mw.Record) -> None:
        c.hold(5, "mine")
        c.produce("out", "value", timestamp=record.value)

    h = harness(with_log(hooks(on_record)))
    h.send("in", 5, timestamp=5)
    h.advance("in", 50)
    h.send("in", 30, timestamp=50)
    assert [value[2:] for value in values(h.output("log"))] == [[5, False], [30, False]]
    assert h.status().produced_late["C"] == 0


KEYS_APART = ("a", "b", "c", "d", "e", "f", "g", "h")


@pytest.mark.parametrize("slots", [1, 3])
@pytest.mark.parametrize("chained", [False, True])
def test_one_key_s_hold_keeps_the_productions_of_all_keys_from_being_late(chained: bool, slots: int) -> None:
    """The low watermark is the computation's (semantics 3), wherever its keys live."""

    def on_record(c: Hooks, record: mw.Record) -> None:
        if record.value is None:
            c.hold(5)
        else:
            c.produce("out", "value", timestamp=record.value)

    h = mw.testing.Harness(with_log(hooks(on_record), chained=chained), slots=slots)
    h.send("in", None, timestamp=5, key="holder")
    h.advance("in", 50)
    assert h.low_watermark("C") == 5
    for key in KEYS_APART:
        h.send("in", 20, timestamp=50, key=key)
    assert [value[2:] for value in values(h.output("log"))] == [[20, False]] * len(KEYS_APART)
    assert (h.status().produced_late["C"], h.status().late["Log"]) == (0, 0)
