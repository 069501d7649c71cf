"""A clock that was wrong once: time does not go back within a run, and a new run begins at the clock."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pytest

import millwheel as mw
from millwheel.master.clock import WallClock
from millwheel.store.memory import MemoryStore
from tests.computations import Hooks
from tests.store.driving import take

NOW = 1_700_000_000 * mw.SECOND
YEARS = 3650 * mw.DAY


class Clocks:
    """The time of day, which can be wrong, and one that nobody sets."""

    def __init__(self) -> None:
        self.day, self.steady = NOW, 0
        self.wall = WallClock(lambda: self.day, lambda: self.steady)

    def pass_by(self, time: int, *, wrong: int = 0) -> int:
        self.steady += time
        self.day += time + wrong
        return self.wall.now()


class Growing(mw.Injector):
    """Two partitions; what is said here is there."""

    bounded = False
    idle_after = 60 * mw.SECOND

    def __init__(self) -> None:
        self.records: dict[str, list[mw.Record]] = {"a": [], "b": []}

    def poll(self) -> Mapping[str, Any]:
        return {name: len(records) for name, records in self.records.items()}

    def read(self, partition: str, start: Any, end: Any) -> Iterable[mw.Record]:
        return self.records[partition][start or 0 : end]

    def low_watermark(self, partition: str, offset: Any) -> int:
        records = self.records[partition][: offset or 0]
        return records[-1].timestamp if records else mw.MIN_TIME


def _wait(c: Hooks, record: mw.Record) -> None:
    c.set_timer("wait", c.now + mw.MINUTE, clock=mw.WALL)


def _done(c: Hooks, timer: mw.Timer) -> None:
    c.count("fired")


def _pipeline(injector: mw.Injector) -> mw.Pipeline:
    p = mw.Pipeline("clock")
    p.inject("in", injector)
    p.add(Hooks(_wait, _done), name="C", inputs={"in": mw.by_key})
    return p


def test_a_jump_is_logged_and_time_does_not_go_back_in_the_run(caplog: pytest.LogCaptureFixture) -> None:
    clocks = Clocks()
    clocks.wall.now()
    clocks.pass_by(mw.HOUR, wrong=mw.HOUR // 2)
    assert not caplog.records
    ahead = clocks.pass_by(mw.SECOND, wrong=YEARS)
    assert ahead > NOW + YEARS
    assert "the clock has jumped ahead by 87600.0 hours" in caplog.text
    caplog.clear()
    behind = clocks.pass_by(mw.SECOND, wrong=-YEARS)
    assert "the clock has jumped back by 87600.0 hours" in caplog.text
    assert behind == ahead + mw.SECOND
    assert clocks.pass_by(mw.MINUTE) == behind + mw.MINUTE


def test_a_clock_that_is_set_back_a_little_is_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    clocks = Clocks()
    clocks.wall.now()
    assert clocks.pass_by(mw.SECOND, wrong=-mw.MINUTE) == NOW
    assert clocks.pass_by(2 * mw.MINUTE) == NOW + mw.MINUTE + mw.SECOND
    assert not caplog.records


def test_a_wall_timer_set_behind_a_clock_that_went_back_fires_in_its_time() -> None:
    clocks, injector = Clocks(), Growing()
    driver, executor = take(_pipeline(injector), MemoryStore(1), clock=clocks.wall)

    def run() -> None:
        while (plan := driver.next_plan()) is not None:
            driver.run(plan, executor)

    clocks.pass_by(mw.SECOND, wrong=YEARS)
    run()
    clocks.pass_by(mw.SECOND, wrong=-YEARS)
    injector.records["a"].append(mw.Record(value=1, timestamp=1, key="k"))
    run()
    clocks.pass_by(mw.MINUTE - 1)
    run()
    assert driver.report().user == {}
    clocks.pass_by(1)
    run()
    assert driver.report().user == {"fired": 1}


def test_no_partition_is_idle_by_a_jump_of_the_clock() -> None:
    clocks, injector = Clocks(), Growing()
    injector.records["a"].append(mw.Record(value=1, timestamp=10, key="k"))
    driver, executor = take(_pipeline(injector), MemoryStore(1), clock=clocks.wall)

    def idle() -> list[str]:
        while (plan := driver.next_plan()) is not None:
            driver.run(plan, executor)
        return [name for names in driver.report().idle_partitions.values() for name in names]

    assert idle() == []
    clocks.pass_by(mw.SECOND, wrong=YEARS)
    assert idle() == []
    clocks.pass_by(30 * mw.SECOND, wrong=-YEARS)
    assert idle() == []
    clocks.pass_by(30 * mw.SECOND)
    assert sorted(idle()) == ["a", "b"]


@pytest.mark.parametrize("dies", [False, True], ids=["after a stop", "with an epoch that was not committed"])
def test_a_start_with_the_clock_behind_the_journal_says_so_and_begins_at_the_clock(
    dies: bool, caplog: pytest.LogCaptureFixture
) -> None:
    store, injector = MemoryStore(1), Growing()
    injector.records["a"].append(mw.Record(value=1, timestamp=1, key="early", id="x"))
    driver, executor = take(_pipeline(injector), store, clock=lambda: NOW + YEARS)
    plan = driver.next_plan()
    assert plan is not None
    if dies:
        driver.journal.plan(plan, driver.graph)
    else:
        driver.run(plan, executor)
    store.close()
    assert not caplog.records

    clock = [NOW]
    driver, executor = take(_pipeline(injector), store, clock=lambda: clock[0])
    injector.records["a"].append(mw.Record(value=1, timestamp=2, key="later", id="y"))
    injector.records["b"].append(mw.Record(value=1, timestamp=2, key="early", id="x"))
    while (plan := driver.next_plan()) is not None:
        driver.run(plan, executor)
    assert "Wall time starts again at the clock" in caplog.text
    assert driver.now() == NOW
    assert driver.report().duplicates == {"C": 1}
    clock[0] += mw.MINUTE
    while (plan := driver.next_plan()) is not None:
        driver.run(plan, executor)
    assert driver.report().user == {"fired": 1}  # the other one was set for ten years later
    store.close()
    caplog.clear()
    take(_pipeline(injector), store, clock=lambda: clock[0])[0].now()
    assert not caplog.records


def test_ids_that_a_wrong_clock_logged_expire_when_they_should_have() -> None:
    store, injector = MemoryStore(1), Growing()
    clock = [NOW + YEARS]

    def send(*ids: int) -> None:
        injector.records["a"] += [mw.Record(value=1, timestamp=1, key=f"k{id}", id=id) for id in ids]

    def run() -> mw.Report:
        driver, executor = take(_pipeline(injector), store, clock=lambda: clock[0], slots=1)
        while (plan := driver.next_plan()) is not None:
            driver.run(plan, executor)
        store.close()
        return driver.report()

    for id in range(5):
        send(id)
        run()
    clock[0] = NOW
    send(7)
    run()
    send(*range(5))
    assert run().duplicates == {"C": 5}
    assert len(list(store.shards[0].scan(b"I", b"J"))) == 6  # type: ignore[attr-defined]
    for _ in range(3):
        clock[0] += mw.DAY
        send(clock[0])
        run()
    assert len(list(store.shards[0].scan(b"I", b"J"))) <= 2  # type: ignore[attr-defined]
