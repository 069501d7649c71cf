"""A pipeline of two levels with holds and timers, whose key intervals a test moves."""

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
