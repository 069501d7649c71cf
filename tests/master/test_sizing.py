"""Epochs size themselves towards a target duration."""

from __future__ import annotations

import time

import pytest

import millwheel as mw
from millwheel.master.sizing import Sizer
from millwheel.store.memory import MemoryStore
from millwheel.worker.envelope import Frame
from millwheel.worker.plan import Plan
from tests.computations import Idle
from tests.store.driving import run_to_the_end, take


def _run(sizer: Sizer, rate: float, overhead: float, epochs: int) -> list[float]:
    """Full epochs on a machine of a given rate; gives their durations."""
    durations = []
    for _ in range(epochs):
        seconds = overhead + sizer.bound / rate
        durations.append(seconds)
        sizer.learn(sizer.bound, seconds)
    return durations


def test_full_epochs_come_near_the_target_on_a_fast_and_on_a_slow_machine() -> None:
    for rate in (5_000.0, 50_000.0, 1_000_000.0):
        last = _run(Sizer(target=1.0), rate, overhead=0.1, epochs=20)[-1]
        assert 0.7 < last < 1.4


def test_an_epoch_that_was_not_full_changes_nothing() -> None:
    sizer = Sizer(target=1.0)
    before = sizer.bound
    sizer.learn(records=10, seconds=0.05)
    assert sizer.bound == before


def test_a_slow_epoch_of_few_records_does_not_throw_the_bound_away() -> None:
    sizer = Sizer(target=1.0)
    before = sizer.bound
    sizer.learn(records=400, seconds=3.5)
    assert before / 3 < sizer.bound <= before


def test_slow_epochs_of_few_records_make_the_bound_smaller_if_they_go_on() -> None:
    sizer = Sizer(target=1.0)
    for _ in range(5):
        sizer.learn(records=1_000, seconds=30.0)
    assert sizer.bound <= 1_000


def test_it_recovers_when_the_machine_does() -> None:
    sizer = Sizer(target=1.0)
    _run(sizer, 2_000.0, overhead=0.1, epochs=10)
    last = _run(sizer, 200_000.0, overhead=0.1, epochs=20)[-1]
    assert 0.7 < last < 1.4


class TestABacklog:
    def test_with_many_epochs_waiting_they_become_longer(self) -> None:
        sizer = Sizer(target=1.0, longest=5.0)
        for _ in range(20):
            seconds = 0.1 + sizer.bound / 50_000
            sizer.learn(sizer.bound, seconds, waiting=10_000_000)
        assert sizer.aim == 5.0
        assert 3.5 < seconds < 6.5

    def test_a_target_that_was_given_is_kept(self) -> None:
        sizer = Sizer(target=1.0)
        for _ in range(20):
            seconds = 0.1 + sizer.bound / 50_000
            sizer.learn(sizer.bound, seconds, waiting=10_000_000)
        assert 0.7 < seconds < 1.4

    def test_who_just_keeps_up_has_short_ones_however_full_they_are(self) -> None:
        sizer = Sizer(target=1.0, longest=5.0)
        for _ in range(20):
            sizer.learn(sizer.bound, 0.1 + sizer.bound / 50_000, waiting=sizer.bound)
        assert sizer.aim == 1.0

    def test_behind_it_they_are_as_short_as_they_were(self) -> None:
        sizer = Sizer(target=1.0, longest=5.0)
        for _ in range(20):
            sizer.learn(sizer.bound, 0.1 + sizer.bound / 50_000, waiting=10_000_000)
        large = sizer.bound
        for _ in range(4):
            sizer.learn(records=1_000, seconds=0.1)
        assert sizer.aim == 1.0
        assert sizer.bound < large / 4

    def test_an_epoch_for_timers_alone_does_not_end_it(self) -> None:
        sizer = Sizer(target=1.0, longest=5.0)
        for _ in range(20):
            sizer.learn(sizer.bound, 0.1 + sizer.bound / 50_000, waiting=10_000_000)
        sizer.learn(records=0, seconds=0.3)
        assert sizer.aim == 5.0


class _Heard(Sizer):
    """Epochs of twenty records, and what was said of them."""

    def __init__(self) -> None:
        super().__init__(target=1.0)
        self.bound = 20
        self.waiting: list[int] = []
        self.seconds: list[float] = []

    def learn(self, records: int, seconds: float, waiting: int = 0) -> None:
        self.waiting.append(waiting)
        self.seconds.append(seconds)


def test_a_driver_tells_how_much_waits_behind_a_full_epoch() -> None:
    p = mw.Pipeline("p")
    p.inject("in", mw.injectors.Generator(_record, count=100))
    p.add(Idle(), name="C", inputs={"in": mw.by_key})
    driver, executor = take(p, MemoryStore(1))
    heard = driver.sizer = _Heard()
    run_to_the_end(driver, executor)
    assert heard.waiting[:5] == [80, 60, 40, 20, 0]


def test_the_start_of_the_workers_says_nothing_about_an_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    p = mw.Pipeline("p")
    p.inject("in", mw.injectors.Generator(_record, count=60))
    p.add(Idle(), name="C", inputs={"in": mw.by_key})
    driver, executor = take(p, MemoryStore(1))
    heard = driver.sizer = _Heard()
    execute = executor.execute
    late = [0.0]
    clock = time.perf_counter

    def slowly(plan: Plan) -> list[Frame]:
        late[0] += 100.0
        return execute(plan)

    monkeypatch.setattr(executor, "execute", slowly)
    monkeypatch.setattr("millwheel.master.driver.time.perf_counter", lambda: clock() + late[0])
    for _ in range(2):
        plan = driver.next_plan()
        assert plan is not None
        driver.run(plan, executor)
    assert heard.seconds[0] < 100.0 < heard.seconds[1]


def _record(number: int) -> mw.Record:
    return mw.Record(number, number, key="k")
