"""Joins over random input in random order equal the same query in batch."""

from __future__ import annotations

from typing import Any

import pytest

import millwheel as mw
from tests.operators.feeding import Row, feed, rows, source

Pair = tuple[Any, Any, str, int]


def batch(found: list[Row], before: int, after: int, how: str) -> list[Pair]:
    lefts = [row for row in found if row[0] == "l"]
    rights = [row for row in found if row[0] == "r"]
    pairs: list[Pair] = []
    matched: set[int] = set()
    for _, left, at in lefts:
        for _, right, then in rights:
            if left["k"] == right["k"] and -before <= then - at <= after:
                pairs.append((left["i"], right["i"], left["k"], max(at, then)))
                matched |= {left["i"], right["i"]}
    if how in ("left", "outer"):
        pairs += [(v["i"], None, v["k"], at) for _, v, at in lefts if v["i"] not in matched]
    if how in ("right", "outer"):
        pairs += [(None, v["i"], v["k"], at) for _, v, at in rights if v["i"] not in matched]
    return sorted(pairs, key=repr)


def outcome(h: mw.testing.Harness) -> list[Pair]:
    def number(value: Any) -> Any:
        return None if value is None else value["i"]

    found = [
        (number(record.value["left"]), number(record.value["right"]), record.key, record.timestamp)
        for record in h.output("out")
    ]
    return sorted(found, key=repr)


@pytest.mark.parametrize("within", [5, 0, (0, 12), (7, 2), (-3, 8)])
@pytest.mark.parametrize("how", ["inner", "left", "right", "outer"])
def test_joins_equal_the_same_query_in_batch(how: Any, within: Any) -> None:
    before, after = within if isinstance(within, tuple) else (within, within)
    for seed in range(15):
        p = mw.Pipeline("join")
        left, right = p.inject("l", source()), p.inject("r", source())
        left.key_by("k").join(right.key_by("k"), within=within, how=how, name="out")
        p.stream("out").map(lambda pair: 1).key_by(lambda one: "all").window(mw.windows.tumbling(10)).count(
            "n"
        )
        found = rows(seed, ["l", "r"])
        h = feed(p, found, seed, slots=1 + seed % 2)
        assert outcome(h) == batch(found, before, after, how), seed
        # Nothing of it was late for whoever reads it.
        assert sum(record.value["count"] for record in h.output("n")) == len(h.output("out"))
        assert [h.state("out", key) for key in ("k0", "k1", "k2")] == [None] * 3
        assert h.low_watermark("out") == mw.MAX_TIME


def test_a_record_without_a_partner_comes_once_none_can_come_and_keeps_its_timestamp() -> None:
    p = mw.Pipeline("join")
    left, right = p.inject("l", source()), p.inject("r", source())
    left.key_by("k").join(right.key_by("k"), within=10, how="left", name="out")
    h = mw.testing.Harness(p)
    h.send("l", {"k": "x"}, timestamp=5)
    with h.epoch():
        h.advance("l", 15)
        h.advance("r", 15)
    assert h.output("out") == []
    assert h.low_watermark("out") == 5
    h.send("r", {"k": "y"}, timestamp=15)
    with h.epoch():
        h.advance("l", 16)
        h.advance("r", 16)
    assert [(r.value, r.timestamp) for r in h.output("out")] == [({"left": {"k": "x"}, "right": None}, 5)]


def test_a_stream_joined_with_itself_pairs_each_record_with_itself_too() -> None:
    p = mw.Pipeline("self")
    clicks = p.inject("a", source()).key_by("k")
    clicks.join(clicks, within=3, name="out")
    h = mw.testing.Harness(p)
    h.send("a", {"k": "x", "i": 1}, timestamp=1, id="one")
    h.send("a", {"k": "x", "i": 2}, timestamp=3, id="two")
    h.send("a", {"k": "x", "i": 2}, timestamp=3, id="two")
    h.drain()
    assert outcome(h) == sorted([(1, 1, "x", 1), (1, 2, "x", 3), (2, 1, "x", 3), (2, 2, "x", 3)], key=repr)


def test_a_join_drops_late_records_and_counts_them() -> None:
    p = mw.Pipeline("join")
    left, right = p.inject("l", source()), p.inject("r", source())
    left.key_by("k").join(right.key_by("k"), within=10, name="out")
    h = mw.testing.Harness(p)
    with h.epoch():
        h.advance("l", 20)
        h.advance("r", 20)
    h.send("l", {"k": "x"}, timestamp=19)
    assert h.status().dropped["out"] == 1


@pytest.mark.parametrize("how", ["inner", "left"])
def test_a_key_has_one_timer_for_many_records_and_keeps_those_of_the_window(how: Any) -> None:
    p = mw.Pipeline("join")
    left, right = p.inject("l", source()), p.inject("r", source())
    left.key_by("k").join(right.key_by("k"), within=10, how=how, name="out")
    h = mw.testing.Harness(p)
    for time in range(100):
        with h.epoch():
            for stream in ("l", "r"):
                h.send(stream, {"k": "x"}, timestamp=time)
                h.advance(stream, time)
        assert all(len(rows) <= 12 for rows in h.state("out", "x"))
    h.drain()
    assert len(h.output("out")) == sum(abs(a - b) <= 10 for a in range(100) for b in range(100))
    assert h.status().timers["out"] == 1
    assert h.state("out", "x") is None
