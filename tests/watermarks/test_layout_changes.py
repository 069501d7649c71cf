"""A restart with other slots, or after a crash in an epoch, moves no watermark past what it stood behind."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import millwheel as mw
from millwheel.master.driver import Driver
from millwheel.master.local_executor import LocalExecutor
from millwheel.master.options import Options
from millwheel.model.graph import build
from millwheel.model.injector import Injector, Offset
from millwheel.model.keys import tablet
from millwheel.store.memory import MemoryStore
from millwheel.worker.step import Worker
from tests.computations import Hooks, values

FRONT = next(key for key in map(str, range(1_000)) if tablet(key) < 20)
BACK, BACK_TOO = [key for key in map(str, range(1_000)) if tablet(key) > 50][:2]


class ByHand(Injector):
    """One partition, whose watermark is set by hand."""

    bounded = False

    def __init__(self) -> None:
        self.records: list[mw.Record] = []
        self.watermark = mw.MIN_TIME

    def poll(self) -> Mapping[str, Offset]:
        return {"one": len(self.records)}

    def read(self, partition: str, start: Offset, end: Offset) -> Iterable[mw.Record]:
        return self.records[start or 0 : end]

    def low_watermark(self, partition: str, offset: Offset) -> int:
        return self.watermark


def obey(c: Hooks, record: mw.Record) -> None:
    verb, time = record.value
    if verb == "hold":
        c.hold(time)
        c.state["held"] = time
    elif verb == "release":
        c.release()
        c.produce("out", ["released", 0], timestamp=c.state["held"])
    elif verb == "window":
        c.set_timer("window", time)
    else:
        c.produce("out", record.value)


def watch(c: Hooks, record: mw.Record) -> None:
    verb, time = record.value
    c.produce("seen", [c.key, verb, record.late])
    if verb == "timer":
        c.set_timer("t", time)


class Running:
    """A computation that obeys, and one chained to it that sets timers; restarted with any slots."""

    def __init__(self, slots: int, **options: Any) -> None:
        self.injector, self.sink = ByHand(), mw.sinks.Collect()
        p = mw.Pipeline("restarts")
        p.inject("in", self.injector)
        close = Hooks(obey, lambda c, timer: c.produce("out", ["closed", 0], timestamp=timer.timestamp))
        p.add(close, name="Up", inputs={"in": mw.by_key}, outputs=["out"])
        fire = Hooks(watch, lambda c, timer: c.produce("seen", [c.key, "fired", timer.timestamp]))
        p.add(fire, name="Down", inputs={"out": mw.by_key}, outputs=["seen"])
        p.sink("seen", self.sink)
        self.graph, self.store, self.options = build(p), MemoryStore(), options
        self.wall = 0
        self.start(slots)

    def start(self, slots: int) -> None:
        self.store.close()
        self.driver = Driver(
            self.graph,
            self.store,
            Options(slots=slots, **self.options),
            clock=lambda: self.wall,
            owner="a test",
        )
        self.executor = LocalExecutor(Worker(self.graph, self.driver.numbers, self.store))

    def send(self, key: str, verb: str, time: int = 0) -> None:
        self.injector.records.append(mw.Record(key=key, value=[verb, time], timestamp=max(time, 0)))

    def epoch(self) -> bool:
        plan = self.driver.next_plan()
        if plan is not None:
            self.driver.run(plan, self.executor)
        return plan is not None

    def settle(self) -> None:
        while self.epoch():
            pass

    @property
    def seen(self) -> list[Any]:
        return values(self.sink.records)


def test_a_hold_keeps_timers_of_chained_consumers_after_its_interval_was_split() -> None:
    running = Running(slots=1)
    running.send(BACK, "hold", 5)
    running.send(FRONT, "timer", 20)
    running.settle()
    running.injector.watermark = 50
    running.settle()
    assert running.driver.authority.lows == {"Up": 5, "Down": 5}
    running.start(slots=3)
    running.settle()
    assert running.driver.authority.lows == {"Up": 5, "Down": 5}
    assert running.seen == [[FRONT, "timer", False]]


def test_a_hold_keeps_timers_of_chained_consumers_after_its_interval_was_merged() -> None:
    running = Running(slots=2)
    running.send(BACK, "timer", 20)
    running.settle()
    running.send(BACK, "hold", 5)
    running.injector.watermark = 50
    running.settle()
    assert running.driver.authority.lows == {"Up": 5, "Down": 5}
    running.start(slots=1)
    running.settle()
    assert running.driver.authority.lows == {"Up": 5, "Down": 5}
    assert running.seen == [[BACK, "timer", False]]


def test_a_window_that_one_epoch_left_to_the_next_is_not_late_after_intervals_were_merged() -> None:
    running = Running(slots=2, due_limit=1)
    running.send(BACK, "window", 10)
    running.send(BACK_TOO, "window", 10)
    running.settle()
    running.injector.watermark = 50
    running.epoch()
    assert len(running.seen) == 1
    running.start(slots=1)
    running.settle()
    assert sorted(running.seen) == sorted([[BACK, "closed", False], [BACK_TOO, "closed", False]])


def test_a_second_key_s_hold_holds_chained_consumers_though_their_interval_was_ahead() -> None:
    """It was ahead because the first hold came in the epoch in which the watermark moved."""
    running = Running(slots=2)
    running.send(BACK, "hold", 10)
    running.injector.watermark = 50
    running.settle()
    running.send(FRONT, "hold", 20)
    running.send(BACK, "release")
    running.settle()
    assert running.driver.authority.lows == {"Up": 20, "Down": 20}
    running.send(FRONT, "release")
    running.settle()
    assert running.seen == [[BACK, "released", False], [FRONT, "released", False]]


def test_the_wall_time_does_not_go_back_behind_an_epoch_that_was_run_again() -> None:
    running = Running(slots=1)
    running.wall = 100
    running.send(FRONT, "timer", 20)
    plan = running.driver.next_plan()
    assert plan is not None
    running.driver.journal.plan(plan, running.graph)  # and then the driver dies
    running.wall = 50
    running.start(slots=1)
    running.settle()
    assert running.driver.now() == 100
    running.start(slots=1)
    assert running.driver.now() == 100
