"""A limit of skew holds between injectors as it does between partitions (8.4)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import millwheel as mw
from millwheel.store.memory import MemoryStore
from tests.computations import Hooks
from tests.store.driving import take

LIMIT = 1_000


class Steps(mw.Injector):
    """A partition of records, each ``step`` behind the one before."""

    slack = 0
    bounded = False

    def __init__(self, step: int, count: int, *, parts: int = 1) -> None:
        self.step, self.count, self.parts = step, count, parts

    def poll(self) -> Mapping[str, Any]:
        return {str(part): self.count for part in range(self.parts)}

    def read(self, partition: str, start: Any, end: Any) -> Iterable[mw.Record]:
        return [mw.Record(value=n, timestamp=(n + 1) * self.step) for n in range(start or 0, end)]

    def low_watermark(self, partition: str, offset: Any) -> int:
        return mw.MIN_TIME

    def bound(self, partition: str, start: Any, end: Any, records: int) -> Any:
        return min(end, (start or 0) + records)


class Reading:
    """A computation that reads several injectors, in small epochs."""

    def __init__(self, *injectors: Steps, max_skew: int | None = LIMIT) -> None:
        p = mw.Pipeline("skew")
        names = [f"in {n}" for n in range(len(injectors))]
        for name, injector in zip(names, injectors, strict=True):
            p.inject(name, injector)
        p.add(Hooks(lambda c, record: None), name="C", inputs=dict.fromkeys(names, mw.by_key))
        self.injectors = injectors
        self.driver, self.executor = take(p, MemoryStore(1), max_skew=max_skew)
        self.driver.sizer.bound = 1_000
        self.driver.sizer.learn = lambda *_: None  # type: ignore[method-assign]
        self.ahead = 0
        """By how much the newest record was ahead of the watermark at most."""

    def epochs(self, most: int) -> int:
        for epoch in range(most):
            plan = self.driver.next_plan()
            if plan is None:
                return epoch
            self.driver.run(plan, self.executor)
            newest = max(
                state.newest for found in self.driver.sources.partitions.values() for state in found.values()
            )
            low = self.driver.authority.lows["C"]
            if low > mw.MIN_TIME:
                self.ahead = max(self.ahead, newest - low)
        return most


def test_an_injector_far_ahead_waits_for_one_that_is_behind() -> None:
    reading = Reading(Steps(1, 60_000), Steps(50, 1_200))
    reading.epochs(2_000)
    assert reading.driver.report().records_in == 61_200
    assert reading.ahead <= LIMIT + 50


def test_without_a_limit_it_is_far_ahead() -> None:
    reading = Reading(Steps(1, 60_000), Steps(50, 1_200), max_skew=None)
    reading.epochs(2_000)
    assert reading.ahead > 20 * LIMIT


def test_behind_an_injector_that_is_silent_nothing_is_read_beyond_the_limit() -> None:
    slow = Steps(1, 500)
    reading = Reading(slow, Steps(50, 100_000))
    reading.epochs(2_000)
    assert reading.ahead <= LIMIT + 50
    slow.count = 5_000
    assert reading.epochs(2_000) < 2_000
    assert reading.driver.authority.lows["C"] == 5_000
    assert reading.ahead <= LIMIT + 50


def test_a_silent_injector_holds_back_until_a_run_is_to_end() -> None:
    reading = Reading(Steps(1, 500), Steps(50, 1_000))
    reading.epochs(2_000)
    assert reading.driver.sources.held_back
    while (plan := reading.driver.next_plan_to_the_end()) is not None:
        reading.driver.run(plan, reading.executor)
    assert reading.driver.report().records_in == 1_500
