"""Invariant: a key's timers fire in increasing time order, once, never before their clock has passed them."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

import millwheel as mw

TAGS = st.sampled_from(["a", "b", "c", "d"])
COMMANDS = st.lists(
    st.one_of(
        st.tuples(st.just("set"), TAGS, st.integers(0, 40), st.sampled_from([mw.WATERMARK, mw.WALL])),
        st.tuples(st.just("clear"), TAGS),
    ),
    max_size=4,
)
CALLS = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.sampled_from(["x", "y"]), COMMANDS),
        st.tuples(st.just("advance"), st.integers(0, 45)),
        st.tuples(st.just("advance_wall"), st.integers(0, 45)),
        st.tuples(st.just("crash")),
    ),
    max_size=20,
)


class Obeys(mw.Computation):
    """Sets and clears as it is told, and says what fired."""

    def process_record(self, record: mw.Record) -> None:
        for name, *arguments in record.value:
            (self.set_timer if name == "set" else self.clear_timer)(*arguments)

    def process_timer(self, timer: mw.Timer) -> None:
        self.produce("fired", [self.key, timer.timestamp, timer.tag, timer.clock], timestamp=0)


class Model:
    """Timers by (key, tag), fired after each call."""

    def __init__(self) -> None:
        self.timers: dict[tuple[str, str], tuple[int, str]] = {}
        self.clocks = {mw.WATERMARK: mw.MIN_TIME, mw.WALL: 0}
        self.fired: dict[str, list[list[Any]]] = {"x": [], "y": []}

    def send(self, key: str, commands: list[Any]) -> None:
        for name, tag, *when in commands:
            if name == "set":
                self.timers[key, tag] = (when[0], when[1])
            else:
                self.timers.pop((key, tag), None)
        self.fire()

    def move(self, clock: str, time: int) -> None:
        self.clocks[clock] = max(self.clocks[clock], time)
        self.fire()

    def fire(self) -> None:
        due = sorted(
            (time, tag, key, clock)
            for (key, tag), (time, clock) in self.timers.items()
            if time <= self.clocks[clock]
        )
        for time, tag, key, clock in due:
            del self.timers[key, tag]
            self.fired[key].append([key, time, tag, clock])

    def pending(self, key: str) -> list[mw.Timer]:
        mine = [(time, tag, clock) for (k, tag), (time, clock) in self.timers.items() if k == key]
        return [mw.Timer(tag, time, clock) for time, tag, clock in sorted(mine)]

    def low(self) -> int:
        pending = [time for time, clock in self.timers.values() if clock == mw.WATERMARK]
        return min([self.clocks[mw.WATERMARK], *pending])


@settings(max_examples=200, deadline=None)
@given(calls=CALLS, seed=st.integers(0, 3), slots=st.sampled_from([1, 3]))
def test_timers_are_those_of_the_model_after_every_call(calls: list[Any], seed: int, slots: int) -> None:
    p = mw.Pipeline("timers")
    p.inject("in", mw.injectors.Records([]))
    p.add(Obeys(), inputs={"in": mw.by_key}, outputs=["fired"])
    h = mw.testing.Harness(p, seed=seed, slots=slots)
    model = Model()
    for name, *arguments in calls:
        if name == "send":
            key, commands = arguments
            h.send("in", [list(command) for command in commands], timestamp=0, key=key)
            model.send(key, commands)
        elif name == "advance":
            h.advance("in", *arguments)
            model.move(mw.WATERMARK, *arguments)
        elif name == "advance_wall":
            h.advance_wall(*arguments)
            model.move(mw.WALL, *arguments)
        else:
            h.crash()
        for key in "xy":
            assert h.timers("Obeys", key) == model.pending(key)
            assert [r.value for r in h.output("fired") if r.key == key] == model.fired[key]
        assert h.low_watermark("Obeys") == model.low()
    wall = sum(clock == mw.WALL for _, clock in model.timers.values())
    assert h.status().pending_wall_timers == wall
    h.drain()
    model.move(mw.WATERMARK, mw.MAX_TIME)
    assert len(h.output("fired")) == sum(map(len, model.fired.values()))
    assert h.status().pending_wall_timers == wall
