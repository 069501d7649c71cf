"""Timers that set timers: bounded loops run, endless ones end with an error that says why."""

from __future__ import annotations

import pytest

import millwheel as mw
from millwheel.worker import keyed
from tests.computations import Hooks, hooks, values
from tests.conftest import MakeHarness


def test_a_timer_may_set_itself_for_the_same_time_until_it_is_done(harness: MakeHarness) -> None:
    def on_timer(c: Hooks, timer: mw.Timer) -> None:
        c.state["left"] -= 1
        c.produce("out", c.state["left"])
        if c.state["left"]:
            c.set_timer(timer.tag, timer.timestamp)

    def on_record(c: Hooks, record: mw.Record) -> None:
        c.state["left"] = record.value
        c.set_timer("again", 10)

    h = harness(hooks(on_record, on_timer))
    h.send("in", 5, timestamp=0)
    h.advance("in", 10)
    assert values(h.output("out")) == [4, 3, 2, 1, 0]


def test_two_timers_may_set_each_other(harness: MakeHarness) -> None:
    def on_timer(c: Hooks, timer: mw.Timer) -> None:
        c.produce("out", [timer.tag, timer.timestamp])
        c.set_timer("pong" if timer.tag == "ping" else "ping", timer.timestamp + 1)

    h = harness(hooks(lambda c, record: c.set_timer("ping", 1), on_timer))
    h.send("in", None, timestamp=0)
    h.advance("in", 4)
    assert values(h.output("out")) == [["ping", 1], ["pong", 2], ["ping", 3], ["pong", 4]]


def test_an_endless_loop_at_the_end_of_time_is_an_error_that_says_so(
    harness: MakeHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keyed, "MOST_FIRINGS", 1_000)
    h = harness(
        hooks(
            lambda c, record: c.set_timer("tick", record.timestamp + 1),
            lambda c, timer: c.set_timer("tick", timer.timestamp + 1),
        )
    )
    h.send("in", None, timestamp=0)
    with pytest.raises(mw.UserCodeError, match="never ends") as caught:
        h.drain()
    assert caught.value.computation == "C"
    assert h.timers("C", "") == [mw.Timer("tick", 1)]


def test_a_loop_that_looks_at_the_watermark_ends_with_the_run(harness: MakeHarness) -> None:
    def on_timer(c: Hooks, timer: mw.Timer) -> None:
        c.produce("out", timer.timestamp)
        if c.low_watermark < mw.MAX_TIME:
            c.set_timer("tick", timer.timestamp + 10)

    h = harness(hooks(lambda c, record: c.set_timer("tick", 10), on_timer))
    h.send("in", None, timestamp=0)
    h.advance("in", 25)
    h.drain()
    assert values(h.output("out")) == [10, 20, 30]
