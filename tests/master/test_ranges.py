"""What an epoch reads is dealt out evenly over its tasks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import millwheel as mw
from millwheel.master.journal import Partition
from millwheel.master.ranges import Poll, SkewLimit, choose_ranges
from millwheel.model.names import SourceName
from millwheel.model.pipeline import Source
from millwheel.worker.plan import Range


class _Sized(mw.Injector):
    """Partitions of so many records each, read one after the other."""

    in_turn = True

    def __init__(self, sizes: list[int], *, whole: bool = False) -> None:
        self._sizes = {f"{number:03d}": size for number, size in enumerate(sizes)}
        self._whole = whole

    def poll(self) -> Mapping[str, Any]:
        return self._sizes

    def low_watermark(self, partition: str, offset: Any) -> int:
        return mw.MIN_TIME

    def bound(self, partition: str, start: Any, end: Any, records: int) -> Any:
        return end if self._whole else min((start or 0) + records, end)


def _ranges(injector: _Sized, bound: int, tasks: int, unsplit: int = 4_000) -> list[Range]:
    poll = Poll(dict(injector.poll()), True)
    partitions = {SourceName("in"): {name: Partition() for name in poll.ends}}
    source = Source(SourceName("in"), injector)
    return choose_ranges([source], {source.name: poll}, partitions, bound, tasks, unsplit, SkewLimit())


def _by_task(ranges: list[Range]) -> list[int]:
    found: Counter[int] = Counter()
    for item in ranges:
        found[item.task] += item.end - (item.start or 0)
    return [found[task] for task in range(max(found) + 1)]


@pytest.mark.parametrize(
    ("sizes", "bound"),
    [
        ([250_000] * 3 + [20_000], 770_000),
        ([1_000_000], 1_000_000),
        ([10] * 9_999, 90_000),
        ([7, 99_993], 100_000),
    ],
)
@pytest.mark.parametrize("tasks", [2, 3, 8])
def test_tasks_get_the_same_share(sizes: list[int], bound: int, tasks: int) -> None:
    shares = _by_task(_ranges(_Sized(sizes), bound, tasks))
    assert len(shares) == tasks
    assert max(shares) <= 1.07 * sum(shares) / tasks


@given(
    sizes=st.lists(st.integers(1, 30_000), min_size=1, max_size=40),
    bound=st.integers(1, 200_000),
    tasks=st.integers(1, 9),
    whole=st.booleans(),
)
def test_every_record_once_in_order_and_few_pieces(
    sizes: list[int], bound: int, tasks: int, whole: bool
) -> None:
    ranges = _ranges(_Sized(sizes, whole=whole), bound, tasks)
    assert [item.task for item in ranges] == sorted(item.task for item in ranges)
    ends: dict[str, int | None] = {}
    for item in ranges:
        assert ends.get(item.partition) == item.start
        ends[item.partition] = item.end
        assert item.last == all(
            other.end <= item.end for other in ranges if other.partition == item.partition
        )
    assert len(ranges) <= len(ends) + tasks - 1
    if whole:
        assert len(ranges) == len(ends)


def test_a_little_too_much_is_not_cut_off() -> None:
    assert len(_ranges(_Sized([50_100, 49_900]), 100_000, 2)) == 2


def test_few_records_are_for_one_task() -> None:
    assert {item.task for item in _ranges(_Sized([1_000] * 3), 3_000, 4)} == {0}


class _Many(_Sized):
    """Partitions side by side, whose watermark follows nothing."""

    in_turn = False


def test_partitions_without_slack_are_all_read_however_little_room_an_epoch_has() -> None:
    from millwheel.master.sources import Sources

    injector, name = _Many([1_000_000] * 20), SourceName("in")
    sources = Sources([Source(name, injector)], {}, {})
    read: Counter[str] = Counter()
    for _ in range(200):
        sources.poll(0)
        ranges = sources.choose(500, 2, 4_000, mw.MAX_TIME)
        for item in ranges:
            read[item.partition] += item.end - (item.start or 0)
            sources.partitions[name][item.partition].offset = item.end
    assert len(read) == 20
    assert max(read.values()) <= 2 * min(read.values())
