"""A hot key is reported with its share of the run, and with the time in which it was hot."""

from __future__ import annotations

import millwheel as mw
from millwheel.store.memory import MemoryStore
from tests.computations import Hooks
from tests.store.driving import take

EPOCH = 1_000


def _run(*epochs: list[str]) -> mw.Report:
    """Epochs of these keys, a minute apart."""
    keys = [key for epoch in epochs for key in epoch]
    records = [mw.Record(value=n, timestamp=n, key=key) for n, key in enumerate(keys)]
    p = mw.Pipeline("hot")
    p.inject("in", mw.injectors.Records(records, per_epoch=EPOCH))
    p.add(Hooks(lambda c, record: None), name="C", inputs={"in": mw.by_key})
    clock = [0]
    driver, executor = take(p, MemoryStore(1), slots=2, clock=lambda: clock[0])
    while (plan := driver.next_plan_to_the_end()) is not None:
        driver.run(plan, executor)
        clock[0] += mw.MINUTE
    return driver.report()


def _cold(number: int) -> list[str]:
    return [f"{number} {n}" for n in range(EPOCH)]


def test_the_share_is_that_of_the_run_and_not_of_an_epoch() -> None:
    hot = ["hot"] * 800 + _cold(0)[:200]
    report = _run(_cold(1), hot, _cold(2), hot, *map(_cold, range(3, 9)))
    assert report.hot_keys == {"C": ("hot", 0.16)}
    assert report.hot_windows == {"C": (mw.MINUTE, 3 * mw.MINUTE)}
    assert (
        "the key 'hot' has 16% of the run's records, hot from 1970-01-01T00:01:00.000000Z to "
        "1970-01-01T00:03:00.000000Z"
    ) in str(report)


def test_a_key_that_was_hot_for_a_moment_only_is_not_reported() -> None:
    hot = ["hot"] * 300 + _cold(0)[:700]
    report = _run(hot, *map(_cold, range(1, 10)))
    assert report.hot_keys == {}


def test_of_several_keys_the_one_with_the_most_records_of_the_run_is_reported() -> None:
    first, second = ["a"] * 600 + _cold(1)[:400], ["b"] * 500 + _cold(2)[:500]
    report = _run(first, second, second)
    assert report.hot_keys == {"C": ("b", 1_000 / 3_000)}
    assert report.hot_windows == {"C": (mw.MINUTE, 2 * mw.MINUTE)}
