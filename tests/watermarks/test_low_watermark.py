"""Semantics 1 to 3: what a low watermark is, where it comes from, and that it never goes back."""

from __future__ import annotations

import millwheel as mw
from tests.computations import Echo, Hooks, Log, Windower, hooks, single, values
from tests.conftest import MakeHarness


def test_before_an_injector_has_spoken_the_watermark_is_min_time(harness: MakeHarness) -> None:
    h = harness(hooks(lambda c, record: c.produce("out", c.low_watermark)))
    assert h.low_watermark("C") == mw.MIN_TIME
    h.send("in", None, timestamp=5)
    assert h.low_watermark("C") == mw.MIN_TIME
    assert values(h.output("out")) == [mw.MIN_TIME]


def test_the_watermark_of_an_idle_computation_is_that_of_its_input(harness: MakeHarness) -> None:
    h = harness(single(Echo()))
    h.advance("in", 10)
    assert h.low_watermark("C") == 10
    assert h.status().low_watermarks == {"C": 10}


def test_a_watermark_never_goes_back(harness: MakeHarness) -> None:
    h = harness(single(Echo()))
    h.advance("in", 10)
    h.advance("in", 5)
    assert h.low_watermark("C") == 10
    h.send("in", 1, timestamp=2)
    assert h.low_watermark("C") == 10


def test_a_hook_sees_the_input_watermark_not_the_low_watermark(harness: MakeHarness) -> None:
    def on_record(c: Hooks, record: mw.Record) -> None:
        c.produce("out", c.low_watermark)
        c.set_timer("t", 3)
        c.set_timer("u", 100)

    h = harness(hooks(on_record, lambda c, timer: c.produce("out", [timer.tag, c.low_watermark])))
    h.send("in", None, timestamp=1)
    h.advance("in", 50)
    h.send("in", None, timestamp=60)
    assert values(h.output("out")) == [mw.MIN_TIME, ["t", 50], 50, ["t", 50]]
    assert h.low_watermark("C") == 50


def test_a_pending_watermark_timer_holds_the_low_watermark(harness: MakeHarness) -> None:
    h = harness(hooks(lambda c, record: c.set_timer("t", 30)))
    h.send("in", None, timestamp=0)
    h.advance("in", 20)
    assert h.low_watermark("C") == 20
    h.send("in", None, timestamp=40)
    h.advance("in", 29)
    assert h.low_watermark("C") == 29
    h.advance("in", 35)
    assert h.low_watermark("C") == 35


def test_a_timer_below_the_low_watermark_does_not_pull_it_back(harness: MakeHarness) -> None:
    h = harness(hooks(lambda c, record: c.hold(record.value)))
    h.advance("in", 20)
    h.send("in", 5, timestamp=20)
    assert h.low_watermark("C") == 20
    h.advance("in", 30)
    assert h.low_watermark("C") == 20


def test_the_input_watermark_is_the_minimum_over_the_input_streams(harness: MakeHarness) -> None:
    p = mw.Pipeline("join")
    p.inject("left", mw.injectors.Records([]))
    p.inject("right", mw.injectors.Records([]))
    p.add(Windower(), inputs={"left": mw.by_key, "right": mw.by_key}, outputs=["windows"])
    h = harness(p)
    h.send("left", 1, timestamp=0)
    h.advance("left", 5 * mw.SECOND)
    assert h.low_watermark("Windower") == mw.MIN_TIME
    assert h.output("windows") == []
    h.advance("right", mw.SECOND - 1)
    assert h.low_watermark("Windower") == mw.SECOND - 1
    h.advance("right", 2 * mw.SECOND)
    assert h.low_watermark("Windower") == 2 * mw.SECOND
    assert len(h.output("windows")) == 1


def test_a_stream_s_watermark_is_the_minimum_over_its_producers(harness: MakeHarness) -> None:
    p = mw.Pipeline("merge")
    p.inject("a", mw.injectors.Records([]))
    p.inject("b", mw.injectors.Records([]))
    p.inject("merged", mw.injectors.Records([]))
    p.add(Echo("merged"), name="A", inputs={"a": mw.by_key}, outputs=["merged"])
    p.add(Echo("merged"), name="B", inputs={"b": mw.by_key}, outputs=["merged"])
    p.add(Log(), inputs={"merged": mw.by_key}, outputs=["log"])
    h = harness(p)
    h.advance("a", 10)
    h.advance("b", 20)
    assert h.low_watermark("Log") == mw.MIN_TIME
    h.advance("merged", 30)
    assert h.low_watermark("Log") == 10
    h.advance("a", 40)
    assert h.low_watermark("Log") == 20
    h.advance("b", 40)
    assert h.low_watermark("Log") == 30


def test_a_consumer_is_held_by_the_producer_s_pending_window(harness: MakeHarness) -> None:
    p = mw.Pipeline("chain")
    p.inject("in", mw.injectors.Records([]))
    p.add(Windower(), inputs={"in": mw.by_key}, outputs=["windows"])
    p.add(Log(), inputs={"windows": lambda record: "all"}, outputs=["log"])
    h = harness(p)
    h.send("in", 1, timestamp=0)
    h.send("in", 1, timestamp=5 * mw.SECOND)
    h.advance("in", 5 * mw.SECOND + 1)
    assert h.low_watermark("Windower") == 5 * mw.SECOND + 1
    h.send("in", 1, timestamp=20 * mw.SECOND)
    h.advance("in", 20 * mw.SECOND)
    assert h.low_watermark("Log") == 20 * mw.SECOND
    assert [value[3] for value in values(h.output("log"))] == [False, False]


def test_a_consumer_of_another_key_is_held_too(harness: MakeHarness) -> None:
    def on_record(c: Hooks, record: mw.Record) -> None:
        c.hold(record.timestamp)

    p = hooks(on_record)
    p.add(Log(), inputs={"out": lambda record: "all"}, outputs=["log"])
    h = harness(p)
    h.send("in", 1, timestamp=7, key="slow")
    h.advance("in", 50)
    assert (h.low_watermark("C"), h.low_watermark("Log")) == (7, 7)


def test_every_watermark_is_max_time_after_a_drain(harness: MakeHarness) -> None:
    p = mw.Pipeline("chain")
    p.inject("in", mw.injectors.Records([]))
    p.inject("other", mw.injectors.Records([]))
    p.add(Windower(), inputs={"in": mw.by_key}, outputs=["windows"])
    p.add(Log(), inputs={"windows": lambda record: "all", "other": mw.by_key}, outputs=["log"])
    h = harness(p)
    h.send("in", 1, timestamp=0)
    h.drain()
    assert h.status().low_watermarks == {"Windower": mw.MAX_TIME, "Log": mw.MAX_TIME}
    assert len(h.output("windows")) == 1


def test_a_drained_pipeline_stays_drained_after_a_crash(harness: MakeHarness) -> None:
    h = harness(single(Windower(), outputs=["windows"]))
    h.send("in", 1, timestamp=0)
    h.drain()
    h.crash()
    assert h.low_watermark("C") == mw.MAX_TIME
    h.drain()
    assert len(h.output("windows")) == 1


def test_the_end_of_one_injector_leaves_the_other_in_charge(harness: MakeHarness) -> None:
    p = mw.Pipeline("join")
    p.inject("left", mw.injectors.Records([]))
    p.inject("right", mw.injectors.Records([]))
    p.add(Echo(), inputs={"left": mw.by_key, "right": mw.by_key}, outputs=["out"])
    h = harness(p)
    h.advance("left", mw.MAX_TIME)
    assert h.low_watermark("Echo") == mw.MIN_TIME
    h.advance("right", 5)
    assert h.low_watermark("Echo") == 5


def test_a_watermark_passes_through_computations_in_the_same_epoch(harness: MakeHarness) -> None:
    p = mw.Pipeline("deep")
    p.inject("s0", mw.injectors.Records([]))
    for n in range(4):
        keyed = mw.by_key if n % 2 else mw.by("k")
        p.add(Echo(f"s{n + 1}"), name=f"E{n}", inputs={f"s{n}": keyed}, outputs=[f"s{n + 1}"])
    h = harness(p)
    h.send("s0", {"k": "a"}, timestamp=3)
    h.advance("s0", 10)
    assert [h.low_watermark(f"E{n}") for n in range(4)] == [10] * 4
