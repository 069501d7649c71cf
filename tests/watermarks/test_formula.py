"""The low watermark algorithm against a naive statement of it: every timestamp written down and looked at."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from millwheel.model.names import Percentile, WatermarkName
from millwheel.model.time import MAX_TIME, MIN_TIME
from millwheel.watermark.formula import (
    Work,
    all_work,
    input_watermarks,
    low_watermark,
    lowest,
    percentile_watermark,
)
from millwheel.watermark.merge import PendingPart, merge_injected, merge_percentiles
from millwheel.watermark.percentile import ALL, Pending, passed
from millwheel.watermark.source import Read, SourceMark, position, read_mark, with_slack

TIMES = st.integers(-3, 12) | st.sampled_from([MIN_TIME, MAX_TIME])
WORK = st.integers(-3, 12)
PARTITIONS = ["a", "b", "c"]


def furthest(bounds: list[int]) -> int:
    """The naive minimum: the largest moment that none of the bounds lies before."""
    return max(t for t in {*bounds, MAX_TIME} if not any(bound < t for bound in bounds))


@given(st.lists(TIMES, min_size=1), st.lists(WORK), TIMES)
def test_no_further_than_any_sender_and_any_work_and_never_back(
    senders: list[int], work: list[int], before: int
) -> None:
    known: dict[WatermarkName, int] = {f"S{n}": mark for n, mark in enumerate(senders)}
    (reached,) = input_watermarks([f"S{n}" for n in range(len(senders))], (), known).values()
    low = low_watermark(reached, min(work, default=MAX_TIME), before)
    assert low == max(furthest([*senders, *work]), before)


@given(st.lists(WORK), st.lists(WORK), st.lists(WORK), st.data())
def test_work_is_the_same_however_it_is_cut_into_intervals(
    timers: list[int], records: list[int], holds: list[int], data: st.DataObject
) -> None:
    cut: list[tuple[list[int], list[int], list[int]]] = [([], [], []) for _ in range(3)]
    for kind, times in enumerate((timers, records, holds)):
        for time in times:
            cut[data.draw(st.integers(0, 2))][kind].append(time)
    whole = all_work(Work(*(min(times, default=MAX_TIME) for times in part)) for part in cut)
    assert whole.oldest() == furthest(timers + records + holds)
    assert whole.oldest(drain=True) == furthest(timers + records)
    for watermark in range(-4, 15):
        due = any(time <= watermark for time in timers) or any(time < watermark for time in records)
        assert (whole.due <= watermark) == due


@given(st.lists(st.dictionaries(st.sampled_from("ABC"), TIMES), min_size=1))
def test_what_tasks_report_is_merged_by_the_minimum(parts: list[dict[WatermarkName, int]]) -> None:
    merged = lowest(parts)
    assert merged.keys() == {name for part in parts for name in part}
    for name, mark in merged.items():
        assert mark == furthest([part[name] for part in parts if name in part])


@given(
    st.lists(st.lists(WORK, max_size=6), min_size=1, max_size=4),
    st.sampled_from([0.5, 0.9, 0.99]),
    TIMES,
    TIMES,
    TIMES,
    st.booleans(),
)
def test_a_percentile_is_the_position_among_all_that_is_pending(
    intervals: list[list[int]], p: float, reached: int, low: int, before: int, unfinished: bool
) -> None:
    """Position floor((1 - p) n) of all timestamps in order, n of them, and MAX_TIME where there is none."""
    fast = Percentile("A", p)

    def part(times: list[int]) -> PendingPart:
        distinct = sorted(set(times))
        pending = Pending(len(times), distinct, [times.count(time) for time in distinct], ALL)
        return PendingPart({fast: reached}, list(pending))

    parts = {"A": [part(times) for times in intervals]}
    found = merge_percentiles(parts, {"A": low}, {fast: before}, ["A"] if unfinished else [])
    ordered = sorted(time for times in intervals for time in times)
    at = ordered[int((1 - Fraction(str(p))) * len(ordered))] if ordered else MAX_TIME
    assert found == {fast: max(before, low) if unfinished else max(before, low, min(reached, at))}
    assert percentile_watermark(reached, at, low, before) == max(before, low, min(reached, at))
    assert passed([Pending(*one.pending) for one in parts["A"]], p) == (at, True)


RECORDS = st.dictionaries(st.sampled_from(PARTITIONS), st.lists(st.integers(0, 40), max_size=8))


@given(
    RECORDS,
    st.dictionaries(st.sampled_from(PARTITIONS), st.integers(-5, 40)),
    st.none() | st.integers(0, 10),
    st.integers(1, 3),
    TIMES,
    st.data(),
)
def test_an_injector_is_as_far_as_its_slowest_partition_whoever_reads_it(
    records: dict[str, list[int]],
    vouches: dict[str, int],
    slack: int | None,
    tasks: int,
    previous: int,
    data: st.DataObject,
) -> None:
    """Of each partition: what is vouched for, or with a slack its newest timestamp less that, if further."""
    read = {name: times for name, times in records.items() if times}
    kept = SourceMark(previous, MAX_TIME, MIN_TIME, slack, final=False)
    held: list[dict[WatermarkName, int]] = []
    newest: list[dict[WatermarkName, int]] = []
    ranges: list[list[Read]] = [[] for _ in range(tasks)]
    for name, times in read.items():
        mark = Read(name, vouches.get(name, MIN_TIME), max(times), last=True)
        ranges[data.draw(st.integers(0, tasks - 1))].append(mark)
    for part in ranges:
        mark, top = read_mark(part, slack, ())
        held.append({"in": mark})
        newest.append({"in": top})
    (found,) = merge_injected({"in": kept}, held, newest).values()

    each = [
        max([vouches.get(name, MIN_TIME), *([max(times) - slack] if slack is not None else [])])
        for name, times in read.items()
    ]
    everything = max((max(times) for times in read.values()), default=MIN_TIME)
    follows = [] if slack is None else [MIN_TIME if everything == MIN_TIME else everything - slack]
    if not each and slack is None:
        assert found == previous, "nobody speaks: it stays"
    else:
        assert found == max(previous, min([*each, *follows], default=MAX_TIME))


@given(st.integers(0, 40), st.integers(0, 40), st.integers(0, 10))
def test_a_partition_of_which_nothing_was_read_stands_a_slack_before_what_is_vouched_for(
    newest: int, mark: int, slack: int
) -> None:
    assert position(newest, mark, slack) == newest
    at = position(MIN_TIME, mark, slack)
    assert with_slack(MIN_TIME, at, slack) == mark
    for nothing in (MIN_TIME, MAX_TIME):
        assert position(MIN_TIME, nothing, slack) == MIN_TIME


def test_pieces_that_others_follow_hold_nothing_and_stragglers_are_left_out() -> None:
    reads: list[Any] = [Read("a", 5, 50, False), Read("a", 40, 60, True), Read("b", 10, 30, True)]
    assert read_mark(reads, None, ()) == (10, 60)
    assert read_mark(reads, None, ("b",)) == (40, 60)
    assert read_mark([], None, ()) == (MAX_TIME, MIN_TIME)
