"""A computation that is added with a percentile that nobody used before begins where its senders are."""

from __future__ import annotations

import math
from typing import Any

import millwheel as mw
from millwheel.master.driver import Driver
from millwheel.master.local_executor import LocalExecutor
from millwheel.master.options import Options
from millwheel.model.graph import build
from millwheel.store.memory import MemoryStore
from millwheel.worker.step import Worker
from tests.computations import Windower


class Watches(mw.Computation):
    """Keeps the watermark that it saw."""

    def process_record(self, record: mw.Record) -> None:
        self.state["seen"] = self.low_watermark


class Ready(mw.Injector):
    """One record, and the watermark behind it."""

    def __init__(self) -> None:
        self.records = [mw.Record(key="a", value={}, timestamp=20)]

    def poll(self) -> dict[str, Any]:
        return {"only": len(self.records)}

    def read(self, partition: str, start: Any, end: Any) -> list[mw.Record]:
        return self.records[start or 0 : end]

    def low_watermark(self, partition: str, offset: Any) -> int:
        return 15


def driver(injector: Ready, store: MemoryStore, added: str = "") -> Driver:
    p = mw.Pipeline("percentiles")
    p.inject("in", injector)
    p.add(Windower(size=100), inputs={"in": mw.by_key}, outputs=["windows"])
    if added:
        p.add(Watches(), inputs={added: mw.by_key}, watermark=0.9)
    store.close()
    return Driver(build(p), store, Options(slots=1, step_budget=math.inf), clock=lambda: 0, owner="a test")


def started(added: str) -> Driver:
    """A driver that has joined a pipeline with a record and a watermark."""
    injector, store = Ready(), MemoryStore()
    first = driver(injector, store)
    plan = first.next_plan()
    assert plan is not None
    first.run(plan, LocalExecutor(Worker(first.graph, first.numbers, store)))
    assert first.authority.lows["Windower"] == 15
    return driver(injector, store, added)


def test_behind_an_injector() -> None:
    assert started("in").authority.inputs["Watches"] == 15


def test_behind_a_computation() -> None:
    assert started("windows").authority.inputs["Watches"] == 15
