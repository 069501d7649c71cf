"""Windows over random input in random order equal the same query in batch."""

from __future__ import annotations

import itertools
import math
import statistics
from typing import Any

import pytest

import millwheel as mw
from tests.operators.feeding import Row, by_key, feed, finals, rows, source
from tests.operators.naive import REVISIONS, WINDOWS

SEEDS = range(25)


def aggregates() -> dict[str, Any]:
    return {
        "n": mw.agg.count(),
        "have": mw.agg.count("o"),
        "total": mw.agg.sum("n"),
        "least": mw.agg.min("n"),
        "most": mw.agg.max("n"),
        "mean": mw.agg.mean("o"),
        "different": mw.agg.distinct("o"),
        "about": mw.agg.approx_distinct("n"),
        "median": mw.agg.quantile("n", 0.5),
        "best": mw.agg.top("n", 2),
        "twice": mw.agg.sum(lambda value: value["n"] * 2),
    }


def expected(found: list[Row]) -> dict[str, Any]:
    numbers = [value["n"] for _, value, _ in found]
    some = [value["o"] for _, value, _ in found if value["o"] is not None]
    return {
        "n": len(found),
        "have": len(some),
        "total": sum(numbers),
        "least": min(numbers),
        "most": max(numbers),
        "mean": sum(some) / len(some) if some else None,
        "different": len(set(some)),
        "about": len(set(numbers)),
        "median": statistics.median(numbers),
        "best": sorted(numbers, reverse=True)[:2],
        "twice": 2 * sum(numbers),
    }


@pytest.mark.parametrize("revisions", REVISIONS)
@pytest.mark.parametrize("window", WINDOWS)
def test_windows_equal_the_same_query_in_batch(window: str, revisions: str) -> None:
    chosen, query = WINDOWS[window]
    options = REVISIONS[revisions]
    late = 0
    for seed in SEEDS:
        p = mw.Pipeline("windows")
        stream = p.inject("a", source())
        stream.key_by("k").window(chosen, **options).aggregate("out", **aggregates())
        found = rows(seed, ["a"])
        h = feed(p, found, seed, slots=1 + seed % 3, lateness=options.get("lateness", 0))
        assert finals(h, "out") == query(found, expected), seed
        assert revisions != "once" or all("revision" not in record.value for record in h.output("out"))
        late += h.status().late["out"]
        for key in by_key(found):
            assert h.state("out", key) is None
            assert h.timers("out", key) == []
    assert bool(late) == ("lateness" in options)


class Longest:
    """An aggregate of one's own: the longest text, and how many there were."""

    def create(self) -> list[Any]:
        return ["", 0]

    def add(self, so_far: list[Any], value: Any) -> list[Any]:
        return [max(so_far[0], value["k"], key=len), so_far[1] + 1]

    def merge(self, a: list[Any], b: list[Any]) -> list[Any]:
        return [max(a[0], b[0], key=len), a[1] + b[1]]

    def result(self, so_far: list[Any]) -> str:
        return f"{so_far[0]} of {so_far[1]}"


def one(window: mw.windows.Window, **options: Any) -> tuple[mw.testing.Harness, mw.Pipeline]:
    p = mw.Pipeline("windows")
    p.inject("a", source()).key_by("k").window(window, **options).count("out")
    return mw.testing.Harness(p), p


def send(h: mw.testing.Harness, time: int, key: str = "x") -> None:
    h.send("a", {"k": key}, timestamp=time)


def emitted(h: mw.testing.Harness) -> list[tuple[int, ...]]:
    return [
        (value["start"], value["end"], value["count"], *([value["revision"]] if "revision" in value else []))
        for value in (record.value for record in h.output("out"))
    ]


def test_a_window_is_emitted_when_the_watermark_reaches_its_end() -> None:
    h, _ = one(mw.windows.tumbling(10))
    send(h, 3)
    h.advance("a", 9)
    assert emitted(h) == []
    h.advance("a", 10)
    assert emitted(h) == [(0, 10, 1)]
    assert [(r.key, r.timestamp, r.value) for r in h.output("out")] == [
        ("x", 9, {"key": "x", "start": 0, "end": 10, "count": 1})
    ]


def test_a_late_record_counts_in_a_window_that_is_still_open() -> None:
    h, _ = one(mw.windows.tumbling(10))
    h.advance("a", 8)
    send(h, 3)
    h.advance("a", 10)
    assert emitted(h) == [(0, 10, 1)]
    assert h.status().late["out"] == 1
    assert h.status().dropped["out"] == 0


def test_a_record_whose_windows_are_over_is_dropped_and_counted() -> None:
    h, _ = one(mw.windows.tumbling(10))
    h.advance("a", 10)
    send(h, 3)
    h.drain()
    assert emitted(h) == []
    assert h.status().dropped["out"] == 1


def test_a_record_whose_windows_are_over_is_diverted_as_it_was() -> None:
    h, _ = one(mw.windows.sliding(10, 5), late="divert")
    h.advance("a", 10)
    send(h, 3)  # in [-5, 5) and [0, 10)
    send(h, 7)  # in [0, 10) and [5, 15)
    h.drain()
    assert [(r.key, r.value, r.timestamp) for r in h.output("out.late")] == [("x", {"k": "x"}, 3)]
    assert emitted(h) == [(5, 15, 1)]


def test_a_record_that_is_late_but_no_later_than_the_lateness_is_added_and_the_window_emitted_again() -> None:
    h, _ = one(mw.windows.tumbling(10), lateness=5)
    send(h, 3)
    h.advance("a", 10)
    send(h, 4)
    h.advance("a", 14)
    send(h, 5)
    h.advance("a", 15)
    send(h, 6)
    assert emitted(h) == [(0, 10, 1, 0), (0, 10, 2, 1), (0, 10, 3, 2)]
    assert h.status().dropped["out"] == 1
    assert h.state("out", "x") is None


def test_a_window_that_only_late_records_made_is_emitted_at_once() -> None:
    h, _ = one(mw.windows.tumbling(10), lateness=5)
    h.advance("a", 12)
    send(h, 3)
    assert emitted(h) == [(0, 10, 1, 0)]


def test_a_window_grows_early_every_so_often_of_wall_time_and_is_silent_without_growth() -> None:
    h, _ = one(mw.windows.tumbling(100), early=10)
    h.advance_wall(1_000)
    send(h, 1)
    send(h, 2)
    h.advance_wall(1_009)
    assert emitted(h) == []
    h.advance_wall(1_010)
    assert emitted(h) == [(0, 100, 2, 0)]
    h.advance_wall(1_025)
    assert len(emitted(h)) == 1
    send(h, 3)
    h.advance_wall(1_030)
    assert emitted(h)[1:] == [(0, 100, 3, 1)]
    h.advance_wall(1_100)
    h.advance("a", 100)
    assert emitted(h)[2:] == [(0, 100, 3, 2)]


def test_a_tick_comes_though_records_come_all_the_time() -> None:
    h, _ = one(mw.windows.tumbling(1_000), early=10)
    for now in range(0, 100, 3):
        with h.epoch():
            h.advance_wall(now)
            send(h, now)
    assert len(emitted(h)) == 9


def test_a_tick_and_the_end_of_a_window_in_one_epoch_emit_it_once() -> None:
    h, _ = one(mw.windows.tumbling(100), early=10)
    send(h, 1)
    with h.epoch():
        h.advance_wall(50)
        h.advance("a", 100)
    assert emitted(h) == [(0, 100, 1, 0)]
    assert h.timers("out", "x") == []


def test_a_late_record_of_a_key_without_a_session_leaves_no_row() -> None:
    h, _ = one(mw.windows.session(10))
    h.advance("a", 100)
    send(h, 0)
    assert h.status().dropped["out"] == 1
    assert h.state("out", "x") is None


def test_records_just_a_gap_apart_are_two_sessions() -> None:
    h, _ = one(mw.windows.session(10))
    send(h, 0)
    send(h, 10)
    send(h, 19)
    h.drain()
    assert emitted(h) == [(0, 10, 1), (10, 29, 2)]


def test_sessions_merge_through_a_late_record_and_have_one_revision_more() -> None:
    h, _ = one(mw.windows.session(10), lateness=100)
    send(h, 0)
    send(h, 15)
    h.advance("a", 25)
    assert emitted(h) == [(0, 10, 1, 0), (15, 25, 1, 0)]
    send(h, 8)
    assert emitted(h)[2:] == [(0, 25, 3, 1)]
    send(h, 24)
    assert len(emitted(h)) == 3
    h.advance("a", 34)
    assert emitted(h)[3:] == [(0, 34, 4, 2)]


def test_a_late_record_joins_a_session_that_is_still_open() -> None:
    h, _ = one(mw.windows.session(10))
    send(h, 12)
    h.advance("a", 16)
    send(h, 4)  # [4, 14) alone would be over
    send(h, 2)
    h.drain()
    assert emitted(h) == [(2, 22, 3)]
    assert h.status().dropped["out"] == 0


@pytest.mark.parametrize("lateness", [0, 5])
def test_a_late_record_behind_a_session_that_is_gone_begins_one_of_its_own(lateness: int) -> None:
    h, _ = one(mw.windows.session(10), lateness=lateness)
    send(h, 0)
    h.advance("a", 10 + lateness)
    assert h.state("out", "x") is None
    send(h, 9)
    h.drain()
    assert [found[:3] for found in emitted(h)] == [(0, 10, 1), (9, 19, 1)]
    assert (h.status().late["out"], h.status().dropped["out"]) == (1, 0)


def test_an_aggregate_of_ones_own_is_merged_with_its_sessions() -> None:
    p = mw.Pipeline("own")
    p.inject("a", source()).key_by(lambda v: "all").window(mw.windows.session(10)).aggregate(
        "out", long=Longest()
    )
    h = mw.testing.Harness(p)
    for time, key in ((0, "x"), (15, "yyy"), (7, "zz")):
        h.send("a", {"k": key}, timestamp=time)
    h.drain()
    assert [record.value["long"] for record in h.output("out")] == ["yyy of 3"]


class Ascending:
    """The numbers in order; makes the result by taking the accumulator apart."""

    def create(self) -> list[int]:
        return []

    def add(self, so_far: list[int], value: Any) -> list[int]:
        return [*so_far, value["n"]]

    def merge(self, a: list[int], b: list[int]) -> list[int]:
        return a + b

    def result(self, so_far: list[int]) -> list[int]:
        so_far.sort(reverse=True)
        return [so_far.pop() for _ in range(len(so_far))]


@pytest.mark.parametrize("window", [mw.windows.tumbling(10), mw.windows.session(10)])
def test_a_result_that_takes_the_accumulator_apart_changes_no_later_revision(
    window: mw.windows.Window,
) -> None:
    p = mw.Pipeline("apart")
    windowed = p.inject("a", source()).key_by("k").window(window, lateness=50, early=5)
    windowed.aggregate("out", n=Ascending())
    h = mw.testing.Harness(p)
    h.send("a", {"k": "x", "n": 2}, timestamp=1)
    h.advance_wall(6)
    h.send("a", {"k": "x", "n": 1}, timestamp=2)
    h.advance("a", 20)
    h.send("a", {"k": "x", "n": 3}, timestamp=3)
    h.drain()
    assert [record.value["n"] for record in h.output("out")] == [[2], [1, 2], [1, 2, 3]]


def test_reduce_and_collect_give_each_window_its_own_values() -> None:
    def join(a: dict[str, Any], b: dict[str, Any]) -> dict[str, Any]:
        a["n"] += b["n"]
        return a

    p = mw.Pipeline("reducing")
    windowed = p.inject("a", source()).key_by("k").window(mw.windows.sliding(10, 5))
    windowed.reduce("reduced", join)
    windowed.collect("collected")
    h = mw.testing.Harness(p)
    for time in (7, 6, 12):
        h.send("a", {"k": "x", "n": time}, timestamp=time)
    h.drain()
    assert [r.value["value"]["n"] for r in h.output("reduced")] == [13, 25, 12]
    assert [[v["n"] for v in r.value["values"]] for r in h.output("collected")] == [[6, 7], [6, 7, 12], [12]]


def test_first_and_last_go_by_timestamp() -> None:
    p = mw.Pipeline("first")
    p.inject("a", source()).key_by("k").window(mw.windows.tumbling(100)).aggregate(
        "out", first=mw.agg.first("n"), last=mw.agg.last("n"), none=mw.agg.first("missing")
    )
    h = mw.testing.Harness(p)
    for time in (50, 20, 90, 60):
        h.send("a", {"k": "x", "n": time}, timestamp=time)
    h.drain()
    value = h.output("out")[0].value
    assert (value["first"], value["last"], value["none"]) == (20, 90, None)


@pytest.mark.parametrize("window", [mw.windows.tumbling(10), mw.windows.session(10)], ids=str)
def test_nan_is_larger_than_any_number_whatever_the_order(window: mw.windows.Window) -> None:
    for numbers in itertools.permutations([2.0, math.nan, 1.0]):
        p = mw.Pipeline("nan")
        stream = p.inject("a", source())
        windowed = stream.key_by(lambda value: "all").window(window)
        windowed.aggregate("numbers", least=mw.agg.min("n"), most=mw.agg.max("n"))
        windowed.aggregate("values", median=mw.agg.quantile("n", 0.5), best=mw.agg.top("n", 2))
        stream.top("top", 2, by="n", window=window)
        h = mw.testing.Harness(p)
        for n in numbers:
            h.send("a", {"n": n}, timestamp=1)
        h.drain()
        (found,), (values,), (top,) = (
            [record.value for record in h.output(name)] for name in ("numbers", "values", "top")
        )
        assert (found["least"], str(found["most"])) == (1.0, "nan")
        assert (values["median"], str(values["best"])) == (2.0, "[nan, 2.0]")
        assert str([value["n"] for value in top["top"]]) == "[nan, 2.0]"


def test_the_sum_of_one_truth_is_a_number() -> None:
    p = mw.Pipeline("truths")
    keyed = p.inject("a", source()).key_by(lambda value: "all")
    for name, window in (("columns", mw.windows.tumbling(10)), ("rows", mw.windows.session(10))):
        keyed.window(window).aggregate(name, total=mw.agg.sum("n"))
    h = mw.testing.Harness(p)
    h.send("a", {"n": True}, timestamp=1)
    h.drain()
    assert [repr(h.output(name)[0].value["total"]) for name in ("columns", "rows")] == ["1", "1"]


@pytest.mark.parametrize("q", [0, 0.25, 0.5, 0.9, 1])
@pytest.mark.parametrize("numbers", [[5, 1, 9, 7, 3, 3], [-math.inf, 1, 2, math.inf], [-math.inf, math.inf]])
def test_a_quantile_lies_between_its_neighbours(q: float, numbers: list[float]) -> None:
    p = mw.Pipeline("quantile")
    p.inject("a", source()).key_by("k").window(mw.windows.tumbling(100)).aggregate(
        "out", found=mw.agg.quantile("n", q)
    )
    h = mw.testing.Harness(p)
    for time, number in enumerate(numbers):
        h.send("a", {"k": "x", "n": number}, timestamp=time)
    h.drain()
    found = h.output("out")[0].value["found"]
    place = q * (len(numbers) - 1)
    ordered = sorted(numbers)
    assert ordered[math.floor(place)] <= found <= ordered[math.ceil(place)]


def test_distinct_counts_different_values_of_any_type() -> None:
    p = mw.Pipeline("distinct")
    p.inject("a", source()).key_by("k").window(mw.windows.tumbling(100)).aggregate(
        "out", exact=mw.agg.distinct("v"), about=mw.agg.approx_distinct("v")
    )
    h = mw.testing.Harness(p)
    for time, value in enumerate([1, "1", 1, None, [1], [1], {"a": 1, "b": 2}, {"b": 2, "a": 1}, b"1", 2.5]):
        h.send("a", {"k": "x", "v": value}, timestamp=time)
    h.crash()
    h.drain()
    assert h.output("out")[0].value["exact"] == 6
    assert h.output("out")[0].value["about"] == 6


def test_distinct_takes_numbers_of_any_size_and_equal_ones_once() -> None:
    p = mw.Pipeline("sizes")
    window = p.inject("a", source()).key_by(lambda value: "x").window(mw.windows.tumbling(100))
    window.aggregate("out", exact=mw.agg.distinct("v"), about=mw.agg.approx_distinct("v"))
    h = mw.testing.Harness(p)
    for value in (1, 1.0, [1e300], [1e300], 1e300, [2.0**64], [float("inf")]):
        h.send("a", {"v": value}, timestamp=1)
    h.drain()
    assert [(r.value["exact"], r.value["about"]) for r in h.output("out")] == [(5, 5)]


def test_a_mean_of_large_integers_is_exact_though_their_sum_has_more_than_64_bits() -> None:
    p = mw.Pipeline("means")
    window = p.inject("a", source()).key_by(lambda value: "x").window(mw.windows.session(10))
    window.aggregate("out", mean=mw.agg.mean("at"))
    h = mw.testing.Harness(p)
    for time in (0, 5, 18, 20, 11):  # two sessions, then one
        h.send("a", {"at": 2**63 - 1 - 2**40}, timestamp=time)
    h.drain()
    assert [r.value["mean"] for r in h.output("out")] == [float(2**63 - 1 - 2**40)]


def test_early_results_of_merged_sessions_count_from_the_first_record() -> None:
    p = mw.Pipeline("early")
    p.inject("a", source()).key_by("k").window(mw.windows.session(10), early=10).count("out")
    h = mw.testing.Harness(p)
    h.send("a", {"k": "x"}, timestamp=0)
    h.advance_wall(10)
    h.advance_wall(15)
    h.send("a", {"k": "x"}, timestamp=15)
    h.advance_wall(17)
    h.send("a", {"k": "x"}, timestamp=8)  # one session, which began at 0 of wall time
    h.advance_wall(19)
    assert [r.value["count"] for r in h.output("out")] == [1]
    h.advance_wall(20)
    assert [(r.value["count"], r.value["revision"]) for r in h.output("out")] == [(1, 0), (3, 1)]
    h.send("a", {"k": "x"}, timestamp=9)
    with h.epoch():
        h.advance_wall(31)
        h.send("a", {"k": "x"}, timestamp=10)
    assert [r.value["count"] for r in h.output("out")] == [1, 3, 5]


def _sums(kind: Any, *values: Any) -> mw.testing.Harness:
    """A harness with a window of these, each in an epoch of its own."""
    p = mw.Pipeline("sums")
    window = p.inject("in", source()).key_by("k").window(kind)
    window.aggregate("out", total=mw.agg.sum("n"))
    h = mw.testing.Harness(p)
    for n in values:
        h.send("in", {"k": "a", "n": n}, timestamp=1)
    return h


_KINDS = [mw.windows.tumbling(10), mw.windows.session(10)]


@pytest.mark.parametrize("window", _KINDS, ids=["tumbling", "session"])
def test_a_sum_is_exact_though_it_had_more_than_64_bits_on_the_way(window: Any) -> None:
    h = _sums(window, 2**63, 2**63, 5, -(2**63), -(2**63))
    h.drain()
    assert [record.value["total"] for record in h.output("out")] == [5]


@pytest.mark.parametrize("window", _KINDS, ids=["tumbling", "session"])
def test_a_sum_of_more_than_64_bits_is_an_error_that_says_what_to_do(window: Any) -> None:
    h = _sums(window, 2**63, 2**63)
    h.send("in", {"k": "b", "n": 1}, timestamp=1)
    with pytest.raises(mw.UserCodeError, match=r"key 'a'.*the sum 18446744073709551616 has .*sum floats"):
        h.drain()


def test_an_approximate_count_is_near_the_exact_one() -> None:
    p = mw.Pipeline("sketch")
    p.inject("a", source()).key_by("k").window(mw.windows.session(10)).aggregate(
        "out", about=mw.agg.approx_distinct("v")
    )
    h = mw.testing.Harness(p)
    with h.epoch():
        for number in range(4_000):
            h.send("a", {"k": "x", "v": number % 2_000}, timestamp=number % 7)
        for number in range(100):
            h.send("a", {"k": "x", "v": f"v{number}"}, timestamp=14)
        h.send("a", {"k": "x", "v": 0}, timestamp=10)  # joins two sessions
    h.drain()
    (value,) = [record.value for record in h.output("out")]
    assert abs(value["about"] / 2_100 - 1) < 0.06


@pytest.mark.parametrize("window", [mw.windows.tumbling(10), mw.windows.session(5)], ids=str)
@pytest.mark.parametrize("aggregate", [mw.agg.sum, mw.agg.mean])
def test_a_sum_of_texts_is_an_error_that_says_where_they_come_from(window: Any, aggregate: Any) -> None:
    p = mw.Pipeline("texts")
    stream = p.inject("in", mw.injectors.Records([]))
    stream.key_by(lambda value: "all").window(window).aggregate("out", total=aggregate("price"))
    h = mw.testing.Harness(p)
    with pytest.raises(mw.UserCodeError, match=r"'1.50' is not a number. Fields of CSV are text"):
        h.send("in", {"price": "1.50"}, timestamp=1)
