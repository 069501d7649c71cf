"""Records made by a function, as fast as they are taken or at a rate."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

import millwheel as mw
from millwheel.master.ending import Ending
from millwheel.store.memory import MemoryStore
from tests.computations import Echo
from tests.store.driving import run, take

Generator = mw.injectors.Generator


class Clock:
    """A monotonic clock that is moved by hand."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("millwheel.injectors.generator.time", clock)
    return clock


def make(i: int) -> mw.Record:
    return mw.Record(value=i, timestamp=i * 10, key=str(i % 3))


def _pipeline(injector: mw.Injector, sink: mw.Sink) -> mw.Pipeline:
    p = mw.Pipeline("generated")
    p.inject("in", injector)
    p.add(Echo(), inputs={"in": mw.by_key}, outputs=["out"])
    p.sink("out", sink)
    return p


def _everything(injector: mw.Injector) -> list[Any]:
    return [
        record.value
        for partition, end in injector.poll().items()
        for record in injector.read(partition, None, end)
    ]


@pytest.mark.parametrize("count", [0, 1, 2, 3, 10, 11])
@pytest.mark.parametrize("partitions", [1, 2, 3, 7])
def test_partitions_share_the_records_and_each_is_made_once(count: int, partitions: int) -> None:
    injector = Generator(make, count=count, partitions=partitions)
    assert len(injector.poll()) == partitions
    assert sorted(_everything(injector)) == list(range(count))


@pytest.mark.parametrize("count", [0, 1, 10])
@pytest.mark.parametrize("partitions", [1, 3])
def test_a_run_makes_exactly_count_records(count: int, partitions: int) -> None:
    sink = mw.sinks.Collect()
    report = run(_pipeline(Generator(make, count=count, partitions=partitions), sink), MemoryStore())
    assert sorted(record.value for record in sink.records) == list(range(count))
    assert report.records_in == count
    assert report.low_watermarks["Echo"] == mw.MAX_TIME


def test_the_same_range_gives_the_same_records() -> None:
    injector = Generator(make, count=100, partitions=2)
    assert list(injector.read("1", 3, 9)) == list(injector.read("1", 3, 9))
    assert [record.value for record in injector.read("1", 3, 6)] == [7, 9, 11]


def test_the_watermark_goes_to_its_end_with_the_last_of_a_partition() -> None:
    injector = Generator(make, count=5, partitions=2)
    assert injector.low_watermark("0", None) == mw.MIN_TIME
    assert injector.low_watermark("0", 2) == mw.MIN_TIME
    assert injector.low_watermark("0", 3) == mw.MAX_TIME
    assert injector.low_watermark("1", 2) == mw.MAX_TIME


def test_an_endless_one_never_ends() -> None:
    injector = Generator(make)
    assert not injector.bounded
    assert injector.poll()["0"] > 1_000
    assert injector.low_watermark("0", 10**12) == mw.MIN_TIME


def test_the_watermark_follows_the_newest_timestamp_with_the_slack() -> None:
    driver, executor = take(_pipeline(Generator(make, slack=25), mw.sinks.Collect()), MemoryStore())
    plan = driver.next_plan()
    assert plan is not None
    driver.run(plan, executor)
    newest = max(item.end for item in plan.ranges) - 1
    assert driver.authority.lows["Echo"] == newest * 10 - 25


class TestRate:
    def test_so_many_are_there_as_the_clock_says(self, clock: Clock) -> None:
        injector = Generator(make, rate=100)
        assert injector.poll() == {"0": 0}
        clock.now += 0.5
        assert injector.poll() == {"0": 50}
        clock.now += 10
        assert injector.poll() == {"0": 1050}

    def test_partitions_share_the_rate(self, clock: Clock) -> None:
        injector = Generator(make, rate=10, partitions=3)
        injector.poll()
        clock.now += 1
        assert injector.poll() == {"0": 4, "1": 3, "2": 3}
        assert sorted(_everything(injector)) == list(range(10))

    def test_a_count_is_not_passed(self, clock: Clock) -> None:
        injector = Generator(make, rate=10, count=15)
        injector.poll()
        clock.now += 100
        assert injector.poll() == {"0": 15}

    def test_a_rate_below_one_in_a_second_is_a_rate(self, clock: Clock) -> None:
        injector = Generator(make, rate=0.5)
        injector.poll()
        clock.now += 3
        assert injector.poll() == {"0": 1}


def _drive(injector: mw.Injector, store: MemoryStore, clock: Clock, seconds: int) -> list[Any]:
    """Follows an injector for some seconds by the clock; what came out."""
    sink = mw.sinks.Collect()
    driver, executor = take(_pipeline(injector, sink), store, ending=Ending.NEVER)
    for _ in range(seconds):
        plan = driver.next_plan()
        if plan is not None:
            driver.run(plan, executor)
        clock.now += 1
    driver.close()
    return [record.value for record in sink.records]


@pytest.mark.parametrize("partitions", [1, 3])
def test_a_second_run_at_a_rate_goes_on_where_the_first_ended(clock: Clock, partitions: int) -> None:
    store = MemoryStore()
    first = _drive(Generator(make, rate=10, partitions=partitions), store, clock, seconds=6)
    second = _drive(Generator(make, rate=10, partitions=partitions), store, clock, seconds=6)
    assert len(first) >= 50
    assert max(Counter(first + second).values()) == 1, "a record was made twice"
    assert sorted(first + second) == list(range(len(first + second)))
    assert len(second) >= 40


def test_a_second_run_of_a_bounded_one_makes_the_rest() -> None:
    store = MemoryStore()
    sink = mw.sinks.Collect()
    run(_pipeline(Generator(make, count=10), sink), store)
    run(_pipeline(Generator(make, count=15), sink2 := mw.sinks.Collect()), store)
    assert sorted(record.value for record in sink.records) == list(range(10))
    assert sorted(record.value for record in sink2.records) == list(range(10, 15))


def test_a_second_run_of_an_endless_one_goes_on_however_far_the_first_came(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millwheel.injectors.generator.READY_AT_ONCE", 100)
    store = MemoryStore()
    first = _drive(Generator(make), store, clock, seconds=3)
    second = _drive(Generator(make), store, clock, seconds=3)
    assert sorted(first) == list(range(len(first)))
    assert len(first) == 300
    assert sorted(first + second) == list(range(600))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"make": 3}, "takes a function of a number that returns a Record, not 3"),
        ({"make": make, "rate": 0}, "rate is a number of records in a second, not 0"),
        ({"make": make, "rate": -1}, "rate is a number of records in a second, not -1"),
        ({"make": make, "partitions": 0}, "partitions is 1 or more, not 0"),
    ],
)
def test_a_wrong_argument_says_what_is_right(arguments: Any, message: str) -> None:
    with pytest.raises(mw.InputError, match=message):
        Generator(**arguments)
