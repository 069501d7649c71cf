"""Where keys live is no part of a result: one slot and several give the same, hooks and watermarks alike."""

from __future__ import annotations

import ast
from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

import millwheel as mw

KEYS = st.sampled_from([f"key {n}" for n in range(8)])
COMMANDS = st.one_of(
    st.tuples(st.just("hold"), st.integers(0, 40)),
    st.tuples(st.just("release")),
    st.tuples(st.just("timer"), st.integers(0, 40)),
    st.tuples(st.just("wall"), st.integers(0, 40)),
    st.tuples(st.just("produce"), st.integers(0, 40)),
)
CALLS = st.lists(
    st.one_of(
        st.tuples(st.just("send"), KEYS, st.integers(0, 40), st.lists(COMMANDS, min_size=1, max_size=3)),
        st.tuples(st.just("advance"), st.integers(0, 45)),
        st.tuples(st.just("advance_wall"), st.integers(0, 45)),
        st.tuples(st.just("crash")),
        st.tuples(st.just("together"), st.integers(0, 45), st.integers(0, 45)),
    ),
    max_size=15,
)


class Obeys(mw.Computation):
    """Does as it is told; a timer produces and releases."""

    def process_record(self, record: mw.Record) -> None:
        for name, *arguments in record.value:
            if name == "hold":
                self.hold(*arguments)
            elif name == "release":
                self.release()
            elif name == "produce":
                self.produce("out", "told", timestamp=arguments[0])
            else:
                self.set_timer(name, *arguments, clock=mw.WALL if name == "wall" else mw.WATERMARK)

    def process_timer(self, timer: mw.Timer) -> None:
        self.produce("out", timer.tag, timestamp=timer.timestamp)
        self.release()


class Watches(mw.Computation):
    """Says all that it sees: the record, whether it is late, and the watermark; then the same of a timer."""

    def process_record(self, record: mw.Record) -> None:
        self.produce("seen", [record.value, record.timestamp, record.late, self.low_watermark])
        self.set_timer(str(record.timestamp), record.timestamp + 5)

    def process_timer(self, timer: mw.Timer) -> None:
        self.produce("seen", ["timer", timer.timestamp, self.low_watermark])


def pipeline(chained: bool) -> mw.Pipeline:
    p = mw.Pipeline("layout")
    p.inject("in", mw.injectors.Records([]))
    p.add(Obeys(), inputs={"in": mw.by_key}, outputs=["out"])
    p.add(Watches(), inputs={"out": mw.by_key if chained else lambda r: r.key}, outputs=["seen"])
    return p


def told(h: mw.testing.Harness) -> Any:
    """All that can be seen from outside, but for how many epochs it took."""
    return sorted((r.key, repr(r.value)) for r in h.output("seen")), replace(h.status(), epochs=0)


def holds(calls: list[Any]) -> bool:
    """Whether some record is told to hold."""
    return any(command[0] == "hold" for call in calls if call[0] == "send" for command in call[3])


def without_timers_watermarks(story: list[Any]) -> list[Any]:
    """The same, but for how far the watermark was beyond a timer that was due."""
    found = []
    for seen, status in story:
        values = [(key, ast.literal_eval(value)) for key, value in seen]
        assert all(value[2] >= value[1] for _, value in values if len(value) == 3)
        found.append(
            (sorted((key, repr(value[:2] if len(value) == 3 else value)) for key, value in values), status)
        )
    return found


def run(calls: list[Any], chained: bool, seed: int, slots: int) -> list[Any]:
    h = mw.testing.Harness(pipeline(chained), seed=seed, slots=slots)
    story: list[Any] = []
    for name, *arguments in calls:
        if name == "send":
            key, timestamp, commands = arguments
            h.send("in", [list(command) for command in commands], timestamp, key=key)
        elif name == "advance":
            h.advance("in", *arguments)
        elif name == "advance_wall":
            h.advance_wall(*arguments)
        elif name == "crash":
            h.crash()
        else:
            with h.epoch():
                h.advance("in", arguments[0])
                h.advance_wall(arguments[1])
        story.append(told(h))
    h.drain()
    return [*story, told(h)]


@settings(max_examples=80, deadline=None)
@given(calls=CALLS, seed=st.integers(0, 3), slots=st.sampled_from([2, 3, 8]))
def test_a_re_keyed_consumer_sees_the_same_over_any_slots(calls: list[Any], seed: int, slots: int) -> None:
    assert run(calls, False, seed, slots) == run(calls, False, 0, 1)


@settings(max_examples=80, deadline=None)
@given(calls=CALLS, seed=st.integers(0, 3), slots=st.sampled_from([2, 3, 8]))
def test_a_chained_consumer_sees_the_same_over_any_slots(calls: list[Any], seed: int, slots: int) -> None:
    several, one = run(calls, True, seed, slots), run(calls, True, 0, 1)
    if holds(calls):  # that one is released, other intervals hear an epoch later: see the test below
        several, one = without_timers_watermarks(several), without_timers_watermarks(one)
    assert several == one


def test_a_chained_consumer_hears_of_a_released_hold_an_epoch_later_where_there_are_other_intervals() -> None:
    """See docs/mechanisms/watermarks.md."""
    calls = [("send", "key 0", 0, [("hold", 5), ("timer", 0)])]
    seen = {slots: run(calls, True, 0, slots)[-1][0] for slots in (1, 2)}
    told = ("key 0", repr(["timer", 0, False, mw.MIN_TIME]))
    assert seen[1] == [told, ("key 0", repr(["timer", 5, mw.MAX_TIME]))]
    assert seen[2] == [told, ("key 0", repr(["timer", 5, 5]))]


@settings(max_examples=60, deadline=None)
@given(calls=CALLS)
def test_a_chained_consumer_sees_what_a_re_keyed_one_sees(calls: list[Any]) -> None:
    assert run(calls, True, 0, 1) == run(calls, False, 0, 1)
