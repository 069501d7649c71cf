"""An injector of partitions whose watermarks a test sets, and a driver that runs it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import millwheel as mw
from millwheel.master.driver import Driver
from millwheel.master.local_executor import LocalExecutor
from millwheel.master.options import Options
from millwheel.model.graph import build
from millwheel.model.injector import Injector, Offset
from millwheel.store.memory import MemoryStore
from millwheel.worker.step import Worker
from tests.computations import Windower

TIMES = dict[str, list[int]]


class Partitions(Injector):
    """Partitions of timestamps, each with the watermark of its last record read."""

    bounded = False

    def __init__(self, times: TIMES, **attributes: Any) -> None:
        self.times = times
        for name, value in attributes.items():
            setattr(self, name, value)

    def poll(self) -> Mapping[str, Offset]:
        return {name: len(times) for name, times in self.times.items()}

    def read(self, partition: str, start: Offset, end: Offset) -> Iterable[mw.Record]:
        return [
            mw.Record(value=partition, timestamp=time) for time in self.times[partition][start or 0 : end]
        ]

    def low_watermark(self, partition: str, offset: Offset) -> int:
        return self.times[partition][offset - 1] if offset else mw.MIN_TIME

    def bound(self, partition: str, start: Offset, end: Offset, records: int) -> Offset:
        return min(end, (start or 0) + records)


class Running:
    """A pipeline over such an injector, run by hand."""

    def __init__(self, injector: Injector, **options: Any) -> None:
        p = mw.Pipeline("partitions")
        p.inject("in", injector)
        p.add(Windower(), inputs={"in": mw.by_key}, outputs=["windows"])
        self._set_up(p, MemoryStore(), **options)

    def _set_up(self, p: mw.Pipeline, store: MemoryStore, **options: Any) -> None:
        graph = build(p)
        self.wall = 0
        self.driver = Driver(
            graph, store, Options(slots=1, **options), clock=lambda: self.wall, owner="a test"
        )
        self.executor = LocalExecutor(Worker(graph, self.driver.numbers, store))

    def settle(self, epochs: int = 1000) -> None:
        """Runs until there is nothing to do."""
        for _ in range(epochs):
            plan = self.driver.next_plan()
            if plan is None:
                return
            self.driver.run(plan, self.executor)

    @property
    def watermark(self) -> int:
        return self.driver.authority.lows["Windower"]
