"""The end of a run that closes: holds are over, however many epochs that takes (semantics 9)."""

from __future__ import annotations

from typing import Any

import pytest

import millwheel as mw
from millwheel.master.driver import Driver
from millwheel.master.local_executor import LocalExecutor
from millwheel.master.options import Options
from millwheel.model.graph import build
from millwheel.store.memory import MemoryStore
from millwheel.worker.step import Worker
from tests.computations import Hooks, Windower

KEYS = 7


def hold_for_ever(c: Hooks, record: mw.Record) -> None:
    c.hold(record.timestamp)
    c.produce("held", record.value)


class Running:
    """Each key holds its record for ever; the windows behind have a timer for each key."""

    def __init__(self, slots: int, **limits: Any) -> None:
        self._slots, self._limits = slots, limits
        self._records = [mw.Record(key=f"key {n}", value=1, timestamp=n) for n in range(KEYS)]
        self.store, self.sink = MemoryStore(4), mw.sinks.Collect()
        self.start()

    def start(self) -> None:
        """Also after a crash."""
        p = mw.Pipeline("held")
        p.inject("in", mw.injectors.Records(self._records))
        p.add(Hooks(hold_for_ever), name="Holds", inputs={"in": mw.by_key}, outputs=["held"])
        windower = Windower("windows", size=10, stamp=-1)
        p.add(windower, inputs={"held": lambda record: record.key}, outputs=["windows"])
        last = Windower("last", size=100)
        p.add(last, name="Last", inputs={"windows": lambda record: "all"}, outputs=["last"], late="drop")
        p.sink("last", self.sink)
        graph = build(p)
        self.store.close()
        self.driver = Driver(
            graph, self.store, Options(slots=self._slots, **self._limits), clock=lambda: 0, owner="a test"
        )
        self._executor = LocalExecutor(Worker(graph, self.driver.numbers, self.store))

    def epoch(self) -> bool:
        plan = self.driver.next_plan_to_the_end()
        if plan is not None:
            self.driver.run(plan, self._executor)
        return plan is not None


@pytest.mark.parametrize("slots", [1, 3])
@pytest.mark.parametrize("crashes", [False, True])
@pytest.mark.parametrize("limits", [{"due_limit": 1}, {"due_limit": 2}, {"step_budget": 0.0}, {}], ids=str)
def test_a_drain_goes_on_to_the_end_of_time_however_many_epochs_it_takes(
    limits: dict[str, Any], crashes: bool, slots: int
) -> None:
    running = Running(slots, **limits)
    unreleased = 0
    while running.epoch():
        unreleased = max(unreleased, running.driver.report().unreleased_holds)
        if crashes:
            running.start()
    assert set(running.driver.authority.lows.values()) == {mw.MAX_TIME}
    assert set(running.driver.authority.inputs.values()) == {mw.MAX_TIME}
    assert [record.value["count"] for record in running.sink.records] == [KEYS]
    assert unreleased == KEYS


def test_a_harness_drains_to_the_end_of_time_under_a_limit() -> None:
    p = mw.Pipeline("held")
    p.inject("in", mw.injectors.Records([]))
    p.add(Hooks(hold_for_ever), name="Holds", inputs={"in": mw.by_key}, outputs=["held"])
    p.add(Windower(size=10), inputs={"held": mw.by_key}, outputs=["windows"])
    h = mw.testing.Harness(p, due_limit=1)
    for n in range(KEYS):
        h.send("in", 1, timestamp=n, key=f"key {n}")
    h.advance("in", 100)
    assert h.low_watermark("Holds") == 0
    assert h.output("windows") == []
    h.drain()
    assert h.low_watermark("Windower") == mw.MAX_TIME
    assert len(h.output("windows")) == KEYS
    assert h.status().unreleased_holds == KEYS
