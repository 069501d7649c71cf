"""`reduce`, `collect`, `first`, `last` and aggregates of one's own: user code may change their values."""

from __future__ import annotations

from typing import Any

import pytest

import millwheel as mw
from tests.operators.feeding import Row, feed, finals, rows, source
from tests.operators.naive import REVISIONS, WINDOWS

SEEDS = range(25)


class Numbers:
    """An aggregate of one's own that changes what it is given: all numbers, and the largest."""

    def create(self) -> dict[str, Any]:
        return {"all": [], "most": None}

    def add(self, so_far: dict[str, Any], value: Any) -> dict[str, Any]:
        so_far["all"].append(value["i"])
        so_far["most"] = max(so_far["all"])
        value.clear()
        return so_far

    def merge(self, a: dict[str, Any], b: dict[str, Any]) -> dict[str, Any]:
        for number in b["all"]:
            a = self.add(a, {"i": number})
        return a

    def result(self, so_far: dict[str, Any]) -> list[int]:
        return [*sorted(so_far["all"]), so_far["most"]]


def combined(a: dict[str, Any], b: dict[str, Any]) -> dict[str, Any]:
    """Adds one value to the other, which it changes."""
    a["n"] += b["n"]
    a["i"] = max(a["i"], b["i"])
    a["o"] = (a["o"] or 0) + (b["o"] or 0)
    return a


def whole_values(found: list[Row]) -> dict[str, Any]:
    """What `first`, `last`, `reduce`, `collect` and an aggregate of one's own give, each by a field."""
    ordered = [value for _, value, _ in sorted(found, key=lambda row: row[2])]
    some = [value["o"] for value in ordered if value["o"] is not None]
    numbers = sorted(value["i"] for value in ordered)
    return {
        "oldest": ordered[0]["i"],
        "newest": ordered[-1],
        "first": some[0] if some else None,
        "last": some[-1] if some else None,
        "own": [*numbers, numbers[-1]],
        "value": {
            "k": ordered[0]["k"],
            "n": sum(value["n"] for value in ordered),
            "i": numbers[-1],
            "o": (sum(some) if some else 0) if len(ordered) > 1 else ordered[0]["o"],
        },
        "values": ordered,
    }


@pytest.mark.parametrize("revisions", REVISIONS)
@pytest.mark.parametrize("window", WINDOWS)
def test_windows_of_whole_values_equal_the_same_query_in_batch(window: str, revisions: str) -> None:
    chosen, query = WINDOWS[window]
    options = REVISIONS[revisions]
    for seed in SEEDS:
        p = mw.Pipeline("windows")
        windowed = p.inject("a", source()).key_by("k").window(chosen, **options)
        windowed.aggregate(
            "aggregated",
            oldest=mw.agg.first("i"),
            newest=mw.agg.last(lambda value: dict(value)),
            first=mw.agg.first("o"),
            last=mw.agg.last("o"),
            own=Numbers(),
        )
        windowed.reduce("reduced", combined)
        windowed.collect("collected")
        found = rows(seed, ["a"], ties=False)
        h = feed(p, found, seed, slots=1 + seed % 3, lateness=options.get("lateness", 0))
        wanted = query(found, whole_values)
        fields = {
            "aggregated": ["oldest", "newest", "first", "last", "own"],
            "reduced": ["value"],
            "collected": ["values"],
        }
        for stream, names in fields.items():
            shown = ["key", "start", "end", *names]
            assert finals(h, stream) == [{name: value[name] for name in shown} for value in wanted], seed


def test_a_function_of_reduce_may_change_either_value() -> None:
    def later(a: dict[str, Any], b: dict[str, Any]) -> dict[str, Any]:
        b["n"] += a["n"]
        return b

    p = mw.Pipeline("reducing")
    p.inject("a", source()).key_by("k").window(mw.windows.sliding(10, 5)).reduce("reduced", later)
    h = mw.testing.Harness(p)
    with h.epoch():
        for time in (6, 7, 12):
            h.send("a", {"k": "x", "n": time}, timestamp=time)
    h.drain()
    assert [r.value["value"]["n"] for r in h.output("reduced")] == [13, 25, 12]


class Merged:
    """An aggregate of one's own that keeps a value and changes it: the sum of all fields."""

    def create(self) -> dict[str, int]:
        return {}

    def add(self, so_far: dict[str, int], value: Any) -> dict[str, int]:
        return self.merge(so_far, value) if so_far else value["fields"]  # type: ignore[no-any-return]

    def merge(self, a: dict[str, int], b: Any) -> dict[str, int]:
        for name, n in b.get("fields", b).items():
            a[name] = a.get(name, 0) + n
        return a

    def result(self, so_far: dict[str, int]) -> dict[str, int]:
        return so_far


def test_what_an_aggregate_of_ones_own_does_to_a_value_no_other_sees() -> None:
    p = mw.Pipeline("own")
    p.inject("a", source()).key_by("k").window(mw.windows.tumbling(10)).aggregate(
        "out", one=Merged(), two=Merged(), first=mw.agg.first("fields"), all=mw.agg.sum("fields.x")
    )
    h = mw.testing.Harness(p)
    with h.epoch():
        for time in (1, 2, 3):
            h.send("a", {"k": "x", "fields": {"x": time}}, timestamp=time)
    h.drain()
    (record,) = h.output("out")
    window = {"key": "x", "start": 0, "end": 10}
    assert record.value == {**window, "one": {"x": 6}, "two": {"x": 6}, "first": {"x": 1}, "all": 6}
