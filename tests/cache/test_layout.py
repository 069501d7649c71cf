"""Intervals that are cut otherwise: what was kept of the old ones is neither used nor left behind."""

from __future__ import annotations

from dataclasses import replace

from millwheel.master.planner import Mode
from millwheel.worker.plan import Interval
from tests.cache.running import Running, Windows, cache_of

KEYS = [f"key {number}" for number in range(50)]
_WHOLE = ((0, 64),)
_HALVES = ((0, 32), (32, 64))


def _cut(running: Running, cuts: tuple[tuple[int, int], ...]) -> None:
    """The next epochs have these intervals, as a balancer would give them."""
    driver = running.driver
    number = driver.layout.sequencer
    level = tuple(Interval(first, last, 0, 0, number) for first, last in cuts)
    original = type(driver).next_plan

    def next_plan(*mode: Mode) -> object:
        plan = original(driver, *mode)
        return None if plan is None else replace(plan, intervals=(level,))

    driver.next_plan = next_plan  # type: ignore[method-assign, assignment]


def test_intervals_that_split_and_merge_and_split_again_see_what_was_written_meanwhile() -> None:
    cache, shelf = cache_of(10**7)
    running = Running(Windows(), [cache])
    expected = []
    for time, cuts in enumerate((_WHOLE, _WHOLE, _HALVES, _HALVES, _WHOLE, _WHOLE, _HALVES, _WHOLE)):
        _cut(running, cuts)
        running.epoch(*[(key, time, time) for key in KEYS], watermark=0)
        expected.append(time)
        places = {key[:3] for key, _ in shelf.scan(b"", b"\xff")}
        assert places == {bytes((1, first, last - 1)) for first, last in cuts}, "the others are gone"
    running.epoch(watermark=100)
    assert sorted(record.key for record in running.sink.records) == sorted(KEYS)
    assert all(record.value == expected for record in running.sink.records)
