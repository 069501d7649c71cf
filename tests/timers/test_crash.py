"""Timers are journaled: they survive a crash, and fire once."""

from __future__ import annotations

import millwheel as mw
from tests.computations import Hooks, Windower, hooks, single, values
from tests.conftest import MakeHarness


def test_pending_timers_of_both_clocks_survive_a_crash(harness: MakeHarness) -> None:
    def on_record(c: Hooks, record: mw.Record) -> None:
        c.set_timer("event", 10)
        c.set_timer("wall", 20, clock=mw.WALL)

    h = harness(hooks(on_record, lambda c, timer: c.produce("out", timer.tag)))
    h.send("in", None, timestamp=0)
    h.crash()
    assert h.timers("C", "") == [mw.Timer("event", 10), mw.Timer("wall", 20, mw.WALL)]
    h.advance("in", 10)
    h.crash()
    h.advance_wall(20)
    h.crash()
    h.drain()
    assert values(h.output("out")) == ["event", "wall"]


def test_a_fired_timer_does_not_fire_again_after_a_crash(harness: MakeHarness) -> None:
    h = harness(single(Windower(), outputs=["windows"]))
    h.send("in", 1, timestamp=0)
    h.advance("in", mw.SECOND)
    h.crash()
    h.advance("in", mw.SECOND)
    h.drain()
    assert len(h.output("windows")) == 1


def test_timers_of_many_keys_survive_a_crash(harness: MakeHarness) -> None:
    h = harness(single(Windower(), outputs=["windows"]))
    for n in range(50):
        h.send("in", n, timestamp=n * mw.SECOND, key=f"key {n}")
    h.crash()
    h.advance("in", 25 * mw.SECOND)
    assert sorted(value["key"] for value in values(h.output("windows"))) == sorted(
        f"key {n}" for n in range(25)
    )
    h.crash()
    h.drain()
    assert len(h.output("windows")) == 50


def test_watermarks_and_the_wall_clock_do_not_go_back_after_a_crash(harness: MakeHarness) -> None:
    h = harness(hooks(lambda c, record: c.produce("out", [c.now, c.low_watermark])))
    h.advance("in", 50)
    h.advance_wall(70)
    h.crash()
    assert h.low_watermark("C") == 50
    h.send("in", None, timestamp=60)
    assert values(h.output("out")) == [[70, 50]]
