"""Invariant: a low watermark never goes back, and never passes a hold, a timer or the input."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import millwheel as mw
from millwheel.store.memory import MemoryStore
from tests.computations import Idle
from tests.spark.sources import Feed
from tests.store.driving import take

COMMANDS = st.one_of(
    st.tuples(st.just("hold"), st.integers(0, 40), st.sampled_from(["", "t"])),
    st.tuples(st.just("release"), st.sampled_from(["", "t"])),
    st.tuples(st.just("timer"), st.integers(0, 40)),
    st.tuples(st.just("del")),
    st.tuples(st.just("fail")),
)
CALLS = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.sampled_from("xyz"), st.lists(COMMANDS, max_size=3)),
        st.tuples(st.just("advance"), st.integers(0, 45)),
        st.tuples(st.just("crash")),
    ),
    max_size=20,
)


class Holder(mw.Computation):
    """Does as it is told."""

    def process_record(self, record: mw.Record) -> None:
        for name, *arguments in record.value:
            if name == "hold":
                self.hold(*arguments)
            elif name == "release":
                self.release(*arguments)
            elif name == "timer":
                self.set_timer("t", *arguments)
            elif name == "del":
                del self.state
            else:
                raise RuntimeError("told to fail")

    def process_timer(self, timer: mw.Timer) -> None:
        """There is nothing to do."""


class Model:
    """Holds and timers by key; a failed record changes nothing."""

    def __init__(self) -> None:
        self.holds: dict[tuple[str, str], int] = {}
        self.timers: dict[str, int] = {}
        self.input = self.low = mw.MIN_TIME

    def send(self, key: str, commands: list[Any]) -> None:
        if ("fail",) not in commands:
            for name, *arguments in commands:
                if name == "hold":
                    self.holds[key, arguments[1]] = arguments[0]
                elif name == "release":
                    self.holds.pop((key, arguments[0]), None)
                elif name == "timer":
                    self.timers[key] = arguments[0]
                else:
                    self.holds = {place: time for place, time in self.holds.items() if place[0] != key}
        self.settle()

    def settle(self) -> None:
        self.timers = {key: time for key, time in self.timers.items() if time > self.input}
        reached = min([self.input, *self.holds.values(), *self.timers.values()])
        self.low = max(self.low, reached)


@settings(max_examples=150, deadline=None)
@given(calls=CALLS, seed=st.integers(0, 3), slots=st.sampled_from([1, 3]))
def test_low_watermarks_are_those_of_the_model(calls: list[Any], seed: int, slots: int) -> None:
    p = mw.Pipeline("holds")
    p.inject("in", mw.injectors.Records([]))
    p.add(Holder(), inputs={"in": mw.by_key}, outputs=["out"], errors="divert")
    p.add(Idle(), name="Down", inputs={"out": lambda record: "all"})
    h = mw.testing.Harness(p, seed=seed, slots=slots)
    model = Model()
    for name, *arguments in calls:
        if name == "send":
            key, commands = arguments
            h.send("in", [list(command) for command in commands], timestamp=40, key=key)
            model.send(key, commands)
        elif name == "advance":
            h.advance("in", *arguments)
            model.input = max(model.input, *arguments)
            model.settle()
        else:
            h.crash()
        assert h.low_watermark("Holder") == model.low
        assert h.low_watermark("Down") == model.low
    h.drain()
    assert h.status().low_watermarks == {"Holder": mw.MAX_TIME, "Down": mw.MAX_TIME}
    assert h.status().unreleased_holds == len(model.holds)


class _Sees(mw.Computation):
    """Tells of every low watermark that it sees."""

    def process_record(self, record: mw.Record) -> None:
        self.produce("seen", self.low_watermark)
        self.set_timer("t", 10)

    def process_timer(self, timer: mw.Timer) -> None:
        self.produce("seen", self.low_watermark)


class _Passes(Holder):
    """Does as it is told, and passes on that it was told."""

    def process_record(self, record: mw.Record) -> None:
        super().process_record(record)
        self.produce("out", None)


@pytest.mark.parametrize("slots", [1, 2, 5])
def test_a_hold_that_is_released_lets_no_interval_run_ahead_and_fall_back(slots: int) -> None:
    """A chained consumer in the interval of the hold knows at once that it is gone, the others do not."""
    keys = [f"key-{number}" for number in range(8)]
    epochs = [
        [(key, 0, [["hold", 5, ""]] if key == keys[0] else []) for key in keys],
        [(keys[0], 1, [])],
        [(keys[0], 20, [["release", ""]])],
        *[[(key, 20, []) for key in keys]] * 3,
    ]
    records = [mw.Record(key=k, timestamp=t, value=value) for epoch in epochs for k, t, value in epoch]
    p = mw.Pipeline("released")
    p.inject("in", feed := Feed({"only": records}, opened=0))
    p.add(_Passes(), inputs={"in": mw.by_key}, outputs=["out"])
    p.add(_Sees(), inputs={"out": mw.by_key}, outputs=["seen"])
    p.sink("seen", out := mw.sinks.Collect())
    driver, executor = take(p, MemoryStore(8), slots=slots)
    for epoch in epochs:
        feed.opened += len(epoch)
        plan = driver.next_plan()
        assert plan is not None
        driver.run(plan, executor)
    for key in keys:
        seen = [record.value for record in out.records if record.key == key]
        assert seen == sorted(seen), f"{key}: the low watermark went back"
        assert seen[-1] == 20
