"""A step that is over its budget leaves its records to the next epoch (Fig. 11)."""

from __future__ import annotations

import itertools

import pytest

import millwheel as mw
from millwheel.master.driver import Driver
from millwheel.master.local_executor import LocalExecutor
from millwheel.master.options import Options
from millwheel.model.graph import build
from millwheel.store.memory import MemoryStore
from millwheel.watch.explain import explain
from millwheel.worker.budget import Budget
from millwheel.worker.step import Worker


class Clock:
    """Stands still but for what hooks take."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


clock = Clock()


class Slow(mw.Computation):
    """Takes a second for each record of the key "slow"; says what came, and when a window is complete."""

    def process_record(self, record: mw.Record) -> None:
        assert not record.late
        clock.now += 1.0 if self.key == "slow" else 0.0
        self.state.setdefault("seen", []).append(record.value)
        self.produce("seen", record.value)
        self.set_timer("end", 1_000)

    def process_timer(self, timer: mw.Timer) -> None:
        self.produce("complete", len(self.state["seen"]), timestamp=timer.timestamp - 1)


class Running:
    """A pipeline whose records all come in the first epoch."""

    def __init__(self, records: list[mw.Record], *, slots: int = 1, budget: float = 2.5) -> None:
        self._records = records
        self._budget = budget
        self.store = MemoryStore(4)
        self.seen, self.complete = mw.sinks.Collect(), mw.sinks.Collect()
        self.start(slots)

    def start(self, slots: int) -> None:
        """Also after a crash, whatever was in memory."""
        p = mw.Pipeline("p")
        p.inject("in", mw.injectors.Records(self._records))
        p.add(Slow(), inputs={"in": mw.by_key}, outputs=["seen", "complete"])
        p.sink("seen", self.seen)
        p.sink("complete", self.complete)
        graph = build(p)
        self.store.close()
        self.driver = Driver(
            graph, self.store, Options(slots=slots, step_budget=self._budget), clock=lambda: 0, owner="a test"
        )
        worker = Worker(graph, self.driver.numbers, self.store, clock=clock)
        self._executor = LocalExecutor(worker)

    def epoch(self) -> bool:
        plan = self.driver.next_plan_to_the_end()
        if plan is not None:
            self.driver.run(plan, self._executor)
        return plan is not None


def _records(slow: int, quick: int) -> list[mw.Record]:
    keys = [("slow", i) for i in range(slow)] + [(f"quick {i}", i) for i in range(quick)]
    keys.sort(key=lambda pair: pair[1])
    return [mw.Record(key=key, value=i, timestamp=i) for key, i in keys]


def test_what_the_budget_does_not_reach_comes_next_and_holds_the_watermark_meanwhile() -> None:
    running = Running(_records(slow=8, quick=0))
    assert running.epoch()
    assert [r.value for r in running.seen.records] == [0, 1, 2]
    assert running.driver.authority.left == 5
    assert running.driver.authority.lows["Slow"] == mw.MIN_TIME
    assert not running.complete.records
    explained = explain(running.store, "Slow")
    assert explained.cause.because == "records"
    assert "left 5 records" in str(explained)
    epochs = 1 + sum(1 for _ in iter(running.epoch, False))
    assert epochs == 3
    assert [r.value for r in running.seen.records] == list(range(8)), "in the order in which they came"
    assert [r.value for r in running.complete.records] == [8], "timers come behind all records"
    assert running.driver.authority.lows["Slow"] == mw.MAX_TIME
    assert running.driver.authority.left == 0


def test_one_slow_key_does_not_keep_the_intervals_of_others_waiting() -> None:
    running = Running(_records(slow=6, quick=40), slots=4)
    running.epoch()
    others = {r.key for r in running.seen.records} - {"slow"}
    assert len(others) >= 25, "the other three intervals are done"
    assert running.driver.authority.left > 0
    while running.epoch():
        pass
    assert sorted(r.value for r in running.seen.records if r.key == "slow") == list(range(6))
    assert len({r.key for r in running.seen.records}) == 41
    assert len(running.complete.records) == 41


@pytest.mark.parametrize("slots", [(1, 4), (4, 1), (2, 3)])
def test_what_was_left_survives_a_crash_and_another_layout(slots: tuple[int, int]) -> None:
    running = Running(_records(slow=9, quick=20), slots=slots[0])
    for number in itertools.count():
        if not running.epoch():
            break
        if number < 7:  # a new layout is an epoch of its own
            running.start(slots[number % 2])
    assert [r.value for r in running.seen.records if r.key == "slow"] == list(range(9))
    assert len(running.seen.records) == 29
    assert len(running.complete.records) == 21
    for shard in running.store.all_shards:
        assert not [key for key, _ in shard.scan(b"B", b"C")], "nothing waits any more"


def test_ids_of_records_that_were_left_are_not_seen_yet() -> None:
    records = [mw.Record(key="slow", value=i, timestamp=i, id=i) for i in (0, 1, 2, 3, 1, 3, 4, 4, 0)]
    running = Running(records)
    while running.epoch():
        pass
    assert [r.value for r in running.seen.records] == [0, 1, 2, 3, 4]
    assert running.driver.report().duplicates["Slow"] == 4


def test_every_step_makes_progress_however_small_the_budget() -> None:
    running = Running(_records(slow=5, quick=0), budget=0.0)
    epochs = sum(1 for _ in iter(running.epoch, False))
    assert [r.value for r in running.seen.records] == list(range(5))
    assert epochs <= 6


def test_the_clock_is_looked_at_rarely_while_hooks_are_quick_and_often_while_they_are_slow() -> None:
    looks = 0
    now = 0.0

    def ticking() -> float:
        nonlocal looks
        looks += 1
        return now

    budget = Budget(100.0, ticking)
    budget.begin()

    def one(takes: float) -> None:
        nonlocal now
        if budget.left <= 0:
            budget.is_over()
        budget.left -= 1
        now += takes

    for _ in range(100_000):
        one(1e-7)
    assert looks < 1_000
    for _ in range(300):
        one(0.1)
    before = looks
    for _ in range(50):
        one(0.1)
    assert looks - before == 50
