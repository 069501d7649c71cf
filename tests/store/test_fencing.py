"""Only the present owner can write: an old sequencer is refused, and the message says by whom (6.2)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import millwheel as mw
from millwheel.errors import FencedError
from millwheel.master.driver import Driver
from millwheel.master.journal import Journal
from millwheel.master.local_executor import LocalExecutor
from millwheel.store.base import Store
from millwheel.worker.fencing import fence
from millwheel.worker.plan import Plan
from millwheel.worker.step import Worker
from tests.store.driving import contents, run_to_the_end, take


class Count(mw.Computation):
    def process_record(self, record: mw.Record) -> None:
        self.state["n"] = self.state.get("n", 0) + 1
        self.produce("out", [self.key, self.state["n"]])


def _pipeline() -> mw.Pipeline:
    p = mw.Pipeline("fenced")
    records = [mw.Record(value=i, timestamp=i, key=f"k{i % 7}") for i in range(100)]
    p.inject("in", mw.injectors.Records(records, per_epoch=20))
    p.add(Count(), inputs={"in": mw.by_key}, outputs=["out"])
    return p


def _planned(driver: Driver) -> Plan:
    plan = driver.next_plan()
    assert plan is not None
    return plan


def _take_over(driver: Driver, store: Store, owner: str) -> int:
    """What a new driver does first."""
    sequencer = Journal(store).acquire(driver.graph, owner)
    fence(store, driver.layout.intervals, sequencer)
    return sequencer


def _all(store: Store) -> list[dict[bytes, bytes]]:
    return [contents(shard) for shard in (store.journal, *store.shards)]


@pytest.fixture
def started(make_store: Callable[..., Store]) -> tuple[Driver, LocalExecutor, Store]:
    store = make_store(2)
    driver, executor = take(_pipeline(), store, owner="the first driver", slots=2)
    driver.run(_planned(driver), executor)
    return driver, executor, store


def test_a_step_with_an_old_sequencer_is_refused_and_writes_nothing(
    started: tuple[Driver, LocalExecutor, Store],
) -> None:
    driver, _, store = started
    plan = _planned(driver)
    driver.journal.plan(plan, driver.graph)
    _take_over(driver, store, "the second driver")
    before = _all(store)
    worker = Worker(driver.graph, driver.numbers, store)
    watermarks = {name: mark.watermark() for name, mark in plan.sources.items()}
    for index in range(len(plan.intervals[0])):
        with pytest.raises(FencedError, match=r"sequencer 1, but .* with sequencer 2"):
            worker.step(plan, 1, index, watermarks, [])
    assert _all(store) == before


def test_a_step_that_is_overtaken_while_its_hooks_run_is_refused_at_its_write(
    make_store: Callable[..., Store],
) -> None:
    store = make_store(1)

    class Slow(Count):
        def process_record(self, record: mw.Record) -> None:
            super().process_record(record)
            if record.value == 10:
                overtake()

    p = mw.Pipeline("fenced")
    p.inject("in", mw.injectors.Records([mw.Record(value=10, timestamp=1, key="k")]))
    p.add(Slow(), inputs={"in": mw.by_key}, outputs=["out"])
    driver, executor = take(p, store, owner="the slow driver")
    states: list[dict[bytes, bytes]] = []

    write = store.shards[0].write

    def overtaken(*arguments: object, **options: object) -> None:
        store.shards[0].write = write  # type: ignore[method-assign]
        _take_over(driver, store, "the second driver")
        states.append(contents(store.shards[0]))
        write(*arguments, **options)  # type: ignore[arg-type]

    def overtake() -> None:
        store.shards[0].write = overtaken  # type: ignore[method-assign]

    with pytest.raises(FencedError, match=r"taken .*over"):
        driver.run(_planned(driver), executor)
    assert contents(store.shards[0]) == states[0]


def test_a_driver_that_was_taken_over_is_refused_at_its_next_journal_write_and_told_by_whom(
    started: tuple[Driver, LocalExecutor, Store],
) -> None:
    driver, executor, store = started
    plan = _planned(driver)
    _take_over(driver, store, "the second driver")
    before = _all(store)
    with pytest.raises(FencedError) as caught:
        driver.run(plan, executor)
    assert "this driver (the first driver) was taken over by the second driver" in str(caught.value)
    assert _all(store) == before


def test_a_driver_that_was_taken_over_before_its_commit_does_not_commit(
    started: tuple[Driver, LocalExecutor, Store],
) -> None:
    driver, executor, store = started
    plan = _planned(driver)

    class Overtaken:
        job = None

        def execute(self, plan: Plan) -> list[object]:
            frames = executor.execute(plan)
            _take_over(driver, store, "the second driver")
            return frames  # type: ignore[return-value]

    with pytest.raises(FencedError, match="taken over by the second driver"):
        driver.run(plan, Overtaken())  # type: ignore[arg-type]
    found = Journal(store).recover()
    assert found.commit.epoch == plan.epoch - 1
    assert found.plan is not None
    assert found.plan.epoch == plan.epoch


def test_the_driver_that_took_over_finishes_what_the_first_began(make_store: Callable[..., Store]) -> None:
    store = make_store(2)
    if not store.address.startswith("memory"):
        pytest.skip("two drivers on one folder need two processes")
    sink = mw.sinks.Collect()

    def pipeline() -> mw.Pipeline:
        p = _pipeline()
        p.sink("out", sink)
        return p

    first, executor = take(pipeline(), store, owner="the first driver", slots=2)
    first.run(_planned(first), executor)
    plan = _planned(first)
    first.journal.plan(plan, first.graph)
    executor.execute(plan)  # its intervals commit; the driver dies before its own commit
    store.close()
    second, executor = take(pipeline(), store, owner="the second driver", slots=2)
    run_to_the_end(second, executor)
    counts = {f"k{i}": [n + 1 for n in range(len(range(i, 100, 7)))] for i in range(7)}
    found: dict[str, list[int]] = {}
    for record in sink.records:
        found.setdefault(record.value[0], []).append(record.value[1])
    assert found == counts
    with pytest.raises(FencedError, match="taken over by the second driver"):
        first.journal.plan(plan, first.graph)


def test_sequencers_grow_with_every_driver(make_store: Callable[..., Store]) -> None:
    store = make_store(1)
    driver, _ = take(_pipeline(), store)
    sequencers = [driver.layout.sequencer, *(_take_over(driver, store, f"driver {i}") for i in range(3))]
    assert sequencers == [1, 2, 3, 4]


def test_a_fence_that_comes_too_late_is_refused(started: tuple[Driver, LocalExecutor, Store]) -> None:
    driver, _, store = started
    _take_over(driver, store, "the second driver")
    with pytest.raises(FencedError):
        fence(store, driver.layout.intervals, driver.layout.sequencer)


def test_intervals_of_an_earlier_layout_are_fenced_too(make_store: Callable[..., Store]) -> None:
    store = make_store(2)
    driver, executor = take(_pipeline(), store, slots=2)
    driver.run(_planned(driver), executor)
    plan = _planned(driver)
    sequencer = Journal(store).acquire(driver.graph, "the second driver")
    fence(store, [], sequencer)  # a layout that has none of those intervals
    worker = Worker(driver.graph, driver.numbers, store)
    with pytest.raises(FencedError):
        worker.step(plan, 1, 0, {name: mark.watermark() for name, mark in plan.sources.items()}, [])
