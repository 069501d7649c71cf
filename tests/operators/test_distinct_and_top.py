"""`distinct` and `top` over random input in random order equal the same query in batch."""

from __future__ import annotations

from typing import Any

import pytest

import millwheel as mw
from tests.operators.feeding import Row, by_key, feed, rows, source


def spaced(found: list[Row], within: int | None) -> list[tuple[str, int]]:
    kept = []
    for key, mine in by_key(found).items():
        times = sorted({row[2] for row in mine})
        for place, time in enumerate(times):
            before = times[place - 1] if place else None
            if before is None or (within is not None and before < time - within):
                kept.append((key, time))
    return sorted(kept)


@pytest.mark.parametrize("within", [None, 1, 5, 40])
def test_distinct_equals_the_same_query_in_batch(within: int | None) -> None:
    for seed in range(25):
        p = mw.Pipeline("distinct")
        p.inject("a", source()).key_by("k").distinct("out", within=within)
        p.stream("out").key_by(lambda v: "all").window(mw.windows.tumbling(10)).count("n")
        found = rows(seed, ["a"])
        h = feed(p, found, seed)
        times = {(row[1]["i"]): row[2] for row in found}
        got = [(record.key, record.timestamp) for record in h.output("out")]
        assert sorted(got) == spaced(found, within), seed
        assert all(times[record.value["i"]] == record.timestamp for record in h.output("out"))
        assert sum(record.value["count"] for record in h.output("n")) == len(got)
        if within is not None:
            assert [h.state("out", key) for key in by_key(found)] == [None] * len(by_key(found))


def test_one_just_within_before_counts() -> None:
    p = mw.Pipeline("distinct")
    p.inject("a", source()).key_by("k").distinct("out", within=10)
    h = mw.testing.Harness(p)
    for time in (0, 10, 21, 21):
        h.send("a", {"k": "x"}, timestamp=time)
    h.drain()
    assert [record.timestamp for record in h.output("out")] == [0, 21]


def test_nothing_is_kept_longer_than_within() -> None:
    p = mw.Pipeline("distinct")
    p.inject("a", source()).key_by("k").distinct("out", within=10)
    h = mw.testing.Harness(p)
    h.send("a", {"k": "x"}, timestamp=5)
    h.advance("a", 15)
    assert h.state("out", "x") is not None
    h.advance("a", 16)
    assert h.state("out", "x") is None
    assert h.timers("out", "x") == []


def test_distinct_and_top_drop_late_records_and_count_them() -> None:
    p = mw.Pipeline("late")
    stream = p.inject("a", source())
    stream.key_by("k").distinct("first")
    stream.top("best", 1, by="n", window=mw.windows.tumbling(10))
    h = mw.testing.Harness(p)
    h.advance("a", 5)
    h.send("a", {"k": "x", "n": 1}, timestamp=4)
    h.drain()
    assert (h.output("first"), h.output("best")) == ([], [])
    assert h.status().dropped == {"first": 1, "best": 1}


@pytest.mark.parametrize("window", [mw.windows.tumbling(20), mw.windows.sliding(20, 10)])
def test_top_equals_the_same_query_in_batch(window: Any) -> None:
    for seed in range(25):
        p = mw.Pipeline("top")
        p.inject("a", source()).key_by("k").top("out", 3, by="n", window=window)
        found = rows(seed, ["a"])
        h = feed(p, found, seed, slots=1 + seed % 3)
        wanted = []
        for start in range(-20, 200, 20 if isinstance(window, type(mw.windows.tumbling(1))) else 10):
            inside = [row for row in found if start <= row[2] < start + 20]
            inside.sort(key=lambda row: (-row[1]["n"], row[1]["k"]))
            if inside:
                best = [(row[1]["n"], row[1]["k"]) for row in inside[:3]]
                wanted.append((start, start + 20, best, start + 19, ""))
        got = [
            (
                record.value["start"],
                record.value["end"],
                [(value["n"], value["k"]) for value in record.value["top"]],
                record.timestamp,
                record.key,
            )
            for record in h.output("out")
        ]
        assert sorted(got) == wanted, seed
        assert all(set(record.value) == {"start", "end", "top"} for record in h.output("out"))


def test_top_over_sessions_equals_the_same_query_in_batch() -> None:
    gap = 2
    for seed in range(25):
        p = mw.Pipeline("top")
        p.inject("a", source()).key_by("k").top("out", 3, by="n", window=mw.windows.session(gap))
        found = rows(seed, ["a"])
        h = feed(p, found, seed, slots=1 + seed % 3)
        wanted: list[tuple[int, int, list[tuple[int, str]]]] = []
        session: list[Row] = []
        for row in [*sorted(found, key=lambda row: row[2]), None]:
            if session and (row is None or row[2] >= session[-1][2] + gap):
                best = sorted((-value["n"], value["k"]) for _, value, _ in session)[:3]
                wanted.append((session[0][2], session[-1][2] + gap, [(-n, k) for n, k in best]))
                session = []
            if row is not None:
                session.append(row)
        got = [
            (v["start"], v["end"], [(value["n"], value["k"]) for value in v["top"]])
            for v in (record.value for record in h.output("out"))
        ]
        assert sorted(got) == wanted, seed
        assert all(record.timestamp == record.value["end"] - 1 for record in h.output("out"))


def test_values_without_the_field_are_not_ranked() -> None:
    p = mw.Pipeline("top")
    p.inject("a", source()).top("out", 2, by="n", window=mw.windows.tumbling(10))
    h = mw.testing.Harness(p)
    for value in ({"n": None}, {}, {"n": 3}):
        h.send("a", value, timestamp=1)
    h.drain()
    assert [record.value["top"] for record in h.output("out")] == [[{"n": 3}]]
