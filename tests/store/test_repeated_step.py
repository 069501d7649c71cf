"""A step that is asked again for a committed epoch answers from its checkpoint and runs nothing (6.1.2)."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

import millwheel as mw
from millwheel.master.driver import Driver
from millwheel.master.local_executor import LocalExecutor
from millwheel.master.reports import deliver, reports_of
from millwheel.store.base import Store
from millwheel.worker.envelope import Frame
from millwheel.worker.step import Worker
from tests.store.driving import contents, take

calls: list[str] = []


class Dice(mw.Computation):
    """Never does the same twice."""

    def process_record(self, record: mw.Record) -> None:
        calls.append("record")
        self.state["last"] = random.random()
        self.set_timer("t", record.timestamp + 1)
        self.produce("rolls", random.random())
        self.count("rolled", random.randrange(1_000_000))

    def process_timer(self, timer: mw.Timer) -> None:
        calls.append("timer")
        self.produce("rolls", random.random())


class Forward(mw.Computation):
    def process_record(self, record: mw.Record) -> None:
        calls.append("forward")
        self.produce("out", [record.value, random.random()])


def _pipeline(sink: mw.Sink | None = None) -> mw.Pipeline:
    p = mw.Pipeline("dice")
    records = [mw.Record(value=i, timestamp=i, key=f"k{i % 9}", id=i) for i in range(40)]
    p.inject("in", mw.injectors.Records(records, per_epoch=40))
    p.add(Dice(), inputs={"in": mw.by_key}, outputs=["rolls"])
    p.add(Forward(), inputs={"rolls": lambda record: str(record.value)[-2:]}, outputs=["out"])
    p.sink("out", sink if sink is not None else mw.sinks.Collect())
    return p


@pytest.fixture
def planned(make_store: Callable[..., Store]) -> tuple[Driver, LocalExecutor, Store]:
    calls.clear()
    store = make_store(2)
    driver, executor = take(_pipeline(), store, slots=3, step_budget=600.0)
    return driver, executor, store


def _answer(frames: list[Frame]) -> list[bytes]:
    """The frames as bytes, but for how long reading took: that is done again, and takes its time again."""
    for frame in frames:
        for report in frame.reports:
            if not report["level"]:
                report["seconds"] = 0.0
    return [frame.to_bytes() for frame in frames]


def test_the_answer_is_the_same_bit_for_bit_and_no_hook_runs(
    planned: tuple[Driver, LocalExecutor, Store],
) -> None:
    driver, executor, store = planned
    plan = driver.next_plan()
    assert plan is not None
    first = _answer(executor.execute(plan))
    assert calls.count("record") == 40
    assert calls.count("timer") > 0
    assert calls.count("forward") > 40
    before = [contents(shard) for shard in store.shards]
    calls.clear()
    for worker in (executor, LocalExecutor(Worker(driver.graph, driver.numbers, store))):
        assert _answer(worker.execute(plan)) == first
    assert calls == []
    assert [contents(shard) for shard in store.shards] == before


def test_the_answer_is_the_same_under_a_new_sequencer(planned: tuple[Driver, LocalExecutor, Store]) -> None:
    driver, executor, _ = planned
    plan = driver.next_plan()
    assert plan is not None
    first = _answer(executor.execute(plan))
    calls.clear()
    again = executor.execute(plan.with_sequencer(plan.intervals[0][0].sequencer + 5))
    assert _answer(again) == first
    assert calls == []


def test_a_step_that_loses_a_race_gives_the_answer_of_the_winner(
    planned: tuple[Driver, LocalExecutor, Store],
) -> None:
    driver, executor, store = planned
    plan = driver.next_plan()
    assert plan is not None
    shard = store.shards[0]
    original = shard.write
    won: list[list[bytes]] = []

    def slow_write(*arguments: object, **options: object) -> None:
        shard.write = original  # type: ignore[method-assign]
        winner = LocalExecutor(Worker(driver.graph, driver.numbers, store))
        won.append(_answer(winner.execute(plan)))
        original(*arguments, **options)  # type: ignore[arg-type]

    shard.write = slow_write  # type: ignore[method-assign]
    lost = _answer(executor.execute(plan))
    assert lost == won[0]


def test_after_a_crash_between_the_steps_and_the_commit_the_same_is_delivered(
    make_store: Callable[..., Store],
) -> None:
    store = make_store(2)
    if not store.address.startswith("memory"):
        pytest.skip("two drivers on one folder need two processes")
    before = mw.sinks.Collect()
    driver, executor = take(_pipeline(before), store, slots=3, step_budget=600.0)
    plan = driver.next_plan()
    assert plan is not None
    driver.journal.plan(plan, driver.graph)
    reports = reports_of(plan, executor.execute(plan))
    deliver(driver.graph, plan.epoch, reports)
    store.close()

    calls.clear()
    after = mw.sinks.Collect()
    driver, executor = take(_pipeline(after), store, slots=3, step_budget=600.0)
    plan = driver.next_plan()
    assert plan is not None
    driver.run(plan, executor)
    assert calls == []
    assert after.records == before.records
    assert len(after.records) > 40


def test_counts_of_a_repeated_step_are_counted_once(make_store: Callable[..., Store]) -> None:
    store = make_store(2)
    if not store.address.startswith("memory"):
        pytest.skip("two drivers on one folder need two processes")
    driver, executor = take(_pipeline(), store, slots=3, step_budget=600.0)
    plan = driver.next_plan()
    assert plan is not None
    driver.journal.plan(plan, driver.graph)
    executor.execute(plan)
    store.close()
    driver, executor = take(_pipeline(), store, slots=3, step_budget=600.0)
    plan = driver.next_plan()
    assert plan is not None
    driver.run(plan, executor)
    assert driver.report().records["Dice"] == 40
    assert driver.report().epochs == 1
    assert driver.report().records_in == 40
