"""The watermark of an injector with several partitions: idle ones, missing ones, and the limit of skew."""

from __future__ import annotations

import millwheel as mw
from tests.watermarks.partitions import TIMES, Partitions, Running


def test_the_slowest_partition_holds_the_watermark() -> None:
    running = Running(Partitions({"a": [10, 20], "b": [5]}))
    running.settle()
    assert running.watermark == 5


def test_an_idle_partition_stops_holding_the_rest_and_says_so() -> None:
    running = Running(Partitions({"a": [10, 20], "b": [5]}, idle_after=100))
    running.settle()
    assert (running.watermark, running.driver.report().idle_partitions) == (5, {})
    running.wall = 50
    injector = running.driver.graph.sources[0].injector
    assert isinstance(injector, Partitions)
    injector.times["a"].append(30)
    running.settle()
    assert running.watermark == 5
    running.wall = 120
    running.settle()
    assert running.watermark == 30
    assert running.driver.report().idle_partitions == {"in": ["b"]}


def test_an_idle_partition_rejoins_when_it_speaks_and_the_watermark_does_not_go_back() -> None:
    injector = Partitions({"a": [10, 20], "b": [5]}, idle_after=100)
    running = Running(injector)
    running.settle()
    running.wall = 60
    injector.times["a"].append(30)
    running.settle()
    running.wall = 110
    running.settle()
    assert running.watermark == 30
    injector.times["b"].append(12)
    running.settle()
    assert running.watermark == 30
    assert running.driver.report().late == {"Windower": 1}
    injector.times["a"].append(90)
    injector.times["b"].append(40)
    running.settle()
    assert running.watermark == 40
    assert running.driver.report().idle_partitions == {}


def test_an_expected_partition_that_is_missing_holds_the_watermark() -> None:
    injector = Partitions({"a": [10, 20]}, expected=("a", "b"))
    running = Running(injector)
    running.settle()
    assert running.watermark == mw.MIN_TIME
    injector.times["b"] = [15]
    running.settle()
    assert running.watermark == 15


def test_an_expected_partition_that_vanishes_holds_with_its_last_known_value() -> None:
    injector = Partitions({"a": [10], "b": [15]}, expected=("a", "b"))
    running = Running(injector)
    running.settle()
    del injector.times["b"]
    injector.times["a"] += [50, 60]
    running.settle()
    assert running.watermark == 15


def test_a_bounded_injector_with_a_missing_partition_is_not_exhausted() -> None:
    running = Running(mw.injectors.Records([mw.Record(value=1, timestamp=1)]))
    running.driver.graph.sources[0].injector.expected = ("records", "more")
    running.settle()
    assert not running.driver.sources.exhausted
    assert running.watermark == mw.MIN_TIME


def _lag(max_skew: int | None) -> int:
    """How many windows are open at most while one of eight partitions is an hour behind."""
    hour = 3_600
    times: TIMES = {str(p): [(hour + i) * mw.SECOND for i in range(2 * hour)] for p in range(7)}
    times["slow"] = [i * mw.SECOND for i in range(3 * hour)]
    running = Running(Partitions(times), max_skew=max_skew)
    running.driver.sizer.bound = 4_000
    running.driver.sizer.learn = lambda *_: None  # type: ignore[method-assign]
    most = 0
    while (plan := running.driver.next_plan()) is not None:
        running.driver.run(plan, running.executor)
        most = max(most, running.driver.authority.counter("Windower", 2))
    assert running.driver.report().records_in == 7 * 2 * hour + 3 * hour
    return most


def test_a_limit_of_skew_bounds_what_waits_in_the_store_behind_a_slow_partition() -> None:
    assert _lag(max_skew=None) > 3_000
    assert _lag(max_skew=60 * mw.SECOND) < 1_000


def test_a_limit_of_skew_does_not_stop_the_partition_that_is_furthest_behind() -> None:
    running = Running(Partitions({"a": [mw.SECOND * i for i in range(5_000)]}), max_skew=1)
    running.settle(epochs=100_000)
    assert running.driver.report().records_in == 5_000
