"""How busy intervals are: sums that forget, bounded by the number of intervals."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from millwheel.store.memory import MemoryStore
from millwheel.watch.load import HALF_LIFE, Load
from millwheel.worker.plan import Interval, Plan
from millwheel.worker.report import IntervalReport, NodeReport
from tests.spark.sources import Feed
from tests.store.driving import take
from tests.watch.running import pipeline, visits

FIRST, SECOND = Interval(0, 32, 0, 0, 1), Interval(32, 64, 1, 1, 1)


def a_plan() -> Plan:
    """Of one level, with two intervals."""
    driver, _ = take(pipeline(Feed({"only": visits(1)})), MemoryStore(2), slots=2)
    plan = driver.next_plan()
    assert plan is not None
    return replace(plan, intervals=((FIRST, SECOND),))


PLAN = a_plan()


def report(first: int, seconds: float, records: int, hot: tuple[str, int] | None = None) -> IntervalReport:
    node = NodeReport(records=records, hot=list(hot or ()))
    return IntervalReport(1, first, 1, {"C": node}, seconds=seconds)


def test_a_steady_load_is_the_share_of_its_time_that_an_interval_works() -> None:
    load = Load()
    for second in range(200):
        load.add(PLAN, [report(0, 0.25, 100), report(32, 0.0, 0)], float(second))
    busy, idle = load.of(PLAN.intervals, 199.0)
    assert busy["busy"] == pytest.approx(0.25, rel=0.05)
    assert busy["records_per_second"] == pytest.approx(100, rel=0.05)
    assert (idle["busy"], idle["records_per_second"]) == (0.0, 0.0)


def test_half_is_forgotten_in_a_half_life() -> None:
    load = Load()
    load.add(PLAN, [report(0, 1.0, 10)], 0.0)
    before = load.of(PLAN.intervals, 0.0)[0]["busy"]
    assert load.of(PLAN.intervals, HALF_LIFE)[0]["busy"] == pytest.approx(before / 2)
    assert before == pytest.approx(math.log(2) / HALF_LIFE)


def test_the_hot_key_is_the_one_of_late() -> None:
    load = Load()
    load.add(PLAN, [report(0, 0.1, 100, ("old", 90))], 0.0)
    load.add(PLAN, [report(0, 0.1, 100, ("new", 60))], 30.0)
    found = load.of(PLAN.intervals, 30.0)[0]
    assert (found["hot_computation"], found["hot_key"]) == ("C", "new")
    assert found["hot_share"] == pytest.approx(60 / 112.5)


def test_a_key_with_few_of_the_records_is_not_hot() -> None:
    load = Load()
    load.add(PLAN, [report(0, 0.1, 2, ("once", 2))], 0.0)
    load.add(PLAN, [report(0, 0.1, 10_000)], 1.0)
    assert load.of(PLAN.intervals, 1.0)[0]["hot_key"] is None


def test_what_is_known_of_an_interval_is_bounded() -> None:
    load = Load()
    for number in range(1_000):
        load.add(PLAN, [report(0, 0.1, 1_000, (f"key {number}", 900))], number * 1e-3)
    assert len(load.intervals[1, 0].hot) <= 16
    load.add(PLAN, [report(0, 0.1, 1_000, ("x" * 10_000, 1_000_000))], 1.0)
    assert all(len(key) < 20 for _, key in load.intervals[1, 0].hot), "nor a key that is too long to show"


def test_intervals_that_are_no_more_are_forgotten() -> None:
    load = Load()
    load.add(PLAN, [report(0, 1.0, 10), report(32, 1.0, 10)], 0.0)
    whole = Interval(0, 64, 0, 0, 2)
    load.add(replace(PLAN, intervals=((whole,),)), [report(0, 1.0, 10)], 1.0)
    assert set(load.intervals) == {(1, 0)}
