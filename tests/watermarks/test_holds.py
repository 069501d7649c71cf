"""Holds: timestamps of persistent state, which keep the low watermark back (5.2)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import millwheel as mw
from tests.computations import Hooks, Log, Windower, hooks, single, values
from tests.conftest import MakeHarness


def commanded() -> mw.Pipeline:
    """A record's value is a list of [accessor, arguments...]."""

    def on_record(c: Hooks, record: mw.Record) -> None:
        for name, *arguments in record.value:
            if name == "del":
                del c.state
            else:
                getattr(c, name)(*arguments)

    return hooks(on_record)


def test_a_hold_holds_the_low_watermark_and_not_the_input(harness: MakeHarness) -> None:
    p = hooks(lambda c, record: (c.produce("out", c.low_watermark), c.hold(5))[0])
    h = harness(p)
    h.send("in", None, timestamp=5)
    h.advance("in", 50)
    assert h.low_watermark("C") == 5
    h.send("in", None, timestamp=60)
    assert values(h.output("out")) == [mw.MIN_TIME, 50]


def test_a_released_hold_holds_no_more(harness: MakeHarness) -> None:
    h = harness(commanded())
    h.send("in", [["hold", 5]], timestamp=5)
    h.advance("in", 50)
    h.send("in", [["release"]], timestamp=50)
    assert h.low_watermark("C") == 50


def test_releasing_what_is_not_held_is_fine(harness: MakeHarness) -> None:
    h = harness(commanded())
    h.send("in", [["release"], ["release", "x"]], timestamp=5)
    h.advance("in", 50)
    assert h.low_watermark("C") == 50


def test_holding_the_same_tag_again_moves_it(harness: MakeHarness) -> None:
    h = harness(commanded())
    h.send("in", [["hold", 5, "t"]], timestamp=5)
    h.advance("in", 50)
    h.send("in", [["hold", 30, "t"]], timestamp=50)
    assert h.low_watermark("C") == 30
    h.send("in", [["hold", 90, "t"]], timestamp=50)
    assert h.low_watermark("C") == 50
    h.advance("in", 100)
    assert h.low_watermark("C") == 90


def test_the_oldest_of_several_tags_counts(harness: MakeHarness) -> None:
    h = harness(commanded())
    h.send("in", [["hold", 5, "a"], ["hold", 10, "b"], ["hold", 20]], timestamp=5)
    h.advance("in", 50)
    assert h.low_watermark("C") == 5
    h.send("in", [["release", "a"]], timestamp=50)
    assert h.low_watermark("C") == 10
    h.send("in", [["release"]], timestamp=50)
    assert h.low_watermark("C") == 10
    h.send("in", [["release", "b"]], timestamp=50)
    assert h.low_watermark("C") == 50


def test_the_oldest_of_several_keys_counts(harness: MakeHarness) -> None:
    h = harness(commanded())
    for n, key in enumerate("abcdef"):
        h.send("in", [["hold", 10 + n]], timestamp=10, key=key)
    h.advance("in", 50)
    for n, key in enumerate("abcdef"):
        assert h.low_watermark("C") == 10 + n
        h.send("in", [["release"]], timestamp=50, key=key)
    assert h.low_watermark("C") == 50


def test_del_state_drops_the_key_s_holds_and_no_other_s(harness: MakeHarness) -> None:
    h = harness(commanded())
    h.send("in", [["hold", 5], ["hold", 6, "t"]], timestamp=5, key="a")
    h.send("in", [["hold", 9]], timestamp=5, key="b")
    h.advance("in", 50)
    assert h.low_watermark("C") == 5
    h.send("in", [["del"]], timestamp=50, key="a")
    assert h.low_watermark("C") == 9


def test_a_hold_after_del_state_counts(harness: MakeHarness) -> None:
    h = harness(commanded())
    h.send("in", [["hold", 5], ["del"], ["hold", 8]], timestamp=5)
    h.advance("in", 50)
    assert h.low_watermark("C") == 8


def test_a_hold_survives_a_crash(harness: MakeHarness) -> None:
    h = harness(commanded())
    h.send("in", [["hold", 5]], timestamp=5)
    h.crash()
    h.advance("in", 50)
    h.crash()
    assert h.low_watermark("C") == 5
    h.send("in", [["release"]], timestamp=50)
    assert h.low_watermark("C") == 50


def test_a_production_at_the_hold_is_not_late_downstream(harness: MakeHarness) -> None:
    def on_record(c: Hooks, record: mw.Record) -> None:
        if record.value == "release":
            c.produce("out", "held", timestamp=5)
            c.release()
        else:
            c.hold(5)

    p = hooks(on_record)
    p.add(Log(), inputs={"out": lambda record: "all"}, outputs=["log"], late="drop")
    h = harness(p)
    h.send("in", "hold", timestamp=5)
    h.advance("in", 50)
    h.send("in", "release", timestamp=50)
    assert values(h.output("log")) == [["all", "held", 5, False]]
    assert h.status().produced_late["C"] == 0
    assert h.low_watermark("Log") == 50


def test_a_hold_keeps_a_downstream_window_open(harness: MakeHarness) -> None:
    def on_record(c: Hooks, record: mw.Record) -> None:
        if record.value == "hold":
            c.hold(record.timestamp)
        elif record.value == "release":
            c.release()
        c.produce("out", record.value)

    p = hooks(on_record)
    p.add(Windower(), inputs={"out": lambda record: "all"}, outputs=["windows"])
    h = harness(p)
    h.send("in", "hold", timestamp=0, key="a")
    h.send("in", "other", timestamp=0, key="b")
    h.advance("in", 9 * mw.SECOND)
    assert h.output("windows") == []
    h.send("in", "release", timestamp=9 * mw.SECOND, key="a")
    assert [value["count"] for value in values(h.output("windows"))] == [2]


def test_a_hold_never_released_ends_with_the_run_and_is_reported(harness: MakeHarness) -> None:
    p = hooks(lambda c, record: (c.hold(record.timestamp), c.produce("out", record.value))[0])
    p.add(Windower(), inputs={"out": lambda record: "all"}, outputs=["windows"])
    h = harness(p)
    h.send("in", 1, timestamp=0, key="a")
    h.send("in", 2, timestamp=3 * mw.SECOND, key="b")
    h.drain()
    assert [value["window"] for value in values(h.output("windows"))] == [0, 3]
    assert h.status().low_watermarks == {"C": mw.MAX_TIME, "Windower": mw.MAX_TIME}
    assert h.status().unreleased_holds == 2


def test_a_drain_without_holds_reports_none(harness: MakeHarness) -> None:
    h = harness(single(Windower(), outputs=["windows"]))
    h.send("in", 1, timestamp=0)
    h.drain()
    assert h.status().unreleased_holds == 0


def test_a_hold_that_a_timer_releases_at_the_end_is_not_reported(harness: MakeHarness) -> None:
    def on_record(c: Hooks, record: mw.Record) -> None:
        c.hold(record.timestamp)
        c.set_timer("end", mw.MAX_TIME)

    h = harness(hooks(on_record, lambda c, timer: c.release()))
    h.send("in", 1, timestamp=0)
    h.drain()
    assert h.status().unreleased_holds == 0
    assert h.low_watermark("C") == mw.MAX_TIME


@pytest.mark.parametrize("time", [2**63, -(2**63) - 1])
def test_a_hold_outside_of_time_is_the_hook_s_error(time: int, harness: MakeHarness) -> None:
    h = harness(hooks(lambda c, record: c.hold(time), errors="divert"))
    h.send("in", 1, timestamp=0)
    assert h.status().failed["C"] == 1
    assert len(h.output("C.errors")) == 1


@pytest.mark.parametrize(
    "use",
    [
        lambda c, record: c.hold("soon"),
        lambda c, record: c.hold(1.5),
        lambda c, record: c.hold(1, 2),
        lambda c, record: c.set_timer("t", "soon"),
        lambda c, record: c.set_timer("t", 2**63),
        lambda c, record: c.set_timer(1, 1),
        lambda c, record: c.set_timer("t", 1, "sundial"),
        lambda c, record: c.produce("out", 1, timestamp="soon"),
        lambda c, record: c.produce("out", 1, timestamp=2**63),
    ],
)
def test_a_time_or_tag_that_is_none_is_the_hook_s_error(
    use: Callable[[Hooks, mw.Record], None], harness: MakeHarness
) -> None:
    h = harness(hooks(use))
    with pytest.raises(mw.UserCodeError) as caught:
        h.send("in", 1, timestamp=0)
    assert isinstance(caught.value.cause, TypeError | ValueError)
