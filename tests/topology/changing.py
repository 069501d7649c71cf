"""A pipeline that becomes others, epoch by epoch and in this process, as a job does it."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from typing import Any

import millwheel as mw
from millwheel.master.diff import Change, change
from millwheel.master.driver import Driver
from millwheel.master.local_executor import LocalExecutor
from millwheel.master.options import Options
from millwheel.master.planner import Mode
from millwheel.model.graph import build
from millwheel.model.injector import Injector, Offset
from millwheel.store.memory import MemoryStore
from millwheel.worker.step import Worker


class Log(Injector):
    """Partitions to which records are appended; the watermark is the oldest timestamp unread."""

    bounded = False

    def __init__(self, partitions: int = 1) -> None:
        self.parts: dict[str, list[mw.Record]] = {str(number): [] for number in range(partitions)}
        self.commits: list[dict[str, Offset]] = []

    def append(self, *records: mw.Record, partition: str = "0") -> None:
        self.parts[partition] += records

    def all(self) -> list[mw.Record]:
        return [record for records in self.parts.values() for record in records]

    def poll(self) -> Mapping[str, Offset]:
        return {name: len(records) or None for name, records in self.parts.items()}

    def read(self, partition: str, start: Offset, end: Offset) -> Iterable[mw.Record]:
        return self.parts[partition][start or 0 : end]

    def bound(self, partition: str, start: Offset, end: Offset, records: int) -> Offset:
        return min(end, (start or 0) + records)

    def low_watermark(self, partition: str, offset: Offset) -> int:
        records = self.parts[partition]
        left = [record.timestamp for record in records[offset or 0 :]]
        newest = max((record.timestamp for record in records), default=mw.MIN_TIME)
        return min(left, default=newest)

    def commit(self, offsets: Mapping[str, Offset]) -> None:
        self.commits.append(dict(offsets))

    def lost(self, offsets: Mapping[str, Offset]) -> str | None:
        return None


class Bounds:
    """Epochs of few records, so that there are many."""

    aim = 1.0

    def __init__(self, bound: int) -> None:
        self.bound = bound

    def learn(self, records: int, seconds: float, waiting: int) -> None:
        """Time means nothing here."""


class Changing:
    """A store, and the driver of the pipeline that is on it now."""

    def __init__(self, pipeline: mw.Pipeline, *, bound: int = 50, slots: int = 2, **options: Any) -> None:
        self.store = MemoryStore(2)
        self.wall = 0
        self._bound, self._slots, self._options = bound, slots, options
        self.lows: dict[str, int] = {}
        self.start(pipeline)

    def start(self, pipeline: mw.Pipeline) -> None:
        """A new driver, as after a crash of the one before."""
        self.pipeline = pipeline
        self.store.close()
        self.driver = Driver(
            build(pipeline),
            self.store,
            Options(slots=self._slots, **self._options),
            clock=lambda: self.wall,
            owner="a test",
        )
        self.driver.sizer = Bounds(self._bound)  # type: ignore[assignment]
        self.executor = LocalExecutor(
            Worker(self.driver.graph, self.driver.numbers, self.store, random.Random(1))
        )

    def apply(self, pipeline: mw.Pipeline, *, drain: bool = True) -> Change:
        """The pipeline becomes another one."""
        found = change(build(pipeline), self.store)
        found.check()
        if found.removed and drain:
            while self._run(self.driver.next_plan(Mode.FINISH)):
                pass
        self.driver.let_go()
        self.start(pipeline)
        return found

    def epoch(self) -> bool:
        """One epoch, if there is something to do."""
        if self.driver.sources.level:
            self.driver.let_go()
            self.start(self.pipeline)
        return self._run(self.driver.next_plan())

    def _run(self, plan: Any) -> bool:
        if plan is None:
            return False
        self.driver.run(plan, self.executor)
        for name, low in self.driver.authority.lows.items():
            assert low >= self.lows.get(name, low), f"the low watermark of {name} went back"
        self.lows |= self.driver.authority.lows
        return True

    def settle(self) -> None:
        """Epochs until there is nothing to do."""
        while self.epoch():
            pass

    def rows(self, name: str) -> int:
        """How many rows a computation has, by its counters."""
        return self.driver.authority.counter(name, 0)
