"""Operators over a folder that grows: run again and again, they end equal to one query over all of it."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import millwheel as mw
from tests.operators.feeding import Row, by_key, rows, source

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STREAMS = ["left", "right"]
SINKS = ["counts", "last", "sessions", "pairs", "spaced", "best"]


def pipeline(folder: Path) -> tuple[mw.Pipeline, dict[str, mw.sinks.Collect]]:
    """Windows as columns and by key, a join, `distinct` and `top`."""
    p = mw.Pipeline("days")
    left, right = (
        p.inject(name, mw.injectors.Files(folder / f"{name}-*", timestamp="at", unit="us", id="i", slack=60))
        for name in STREAMS
    )
    both = left.union(right).key_by("k")
    both.window(mw.windows.tumbling(10)).count("counts")
    both.window(mw.windows.sliding(20, 10), lateness=15).aggregate("last", i=mw.agg.last("i"))
    both.window(mw.windows.session(6)).aggregate("sessions", total=mw.agg.sum("n"))
    left.key_by("k").join(right.key_by("k"), within=8, how="outer", name="pairs")
    both.distinct("spaced", within=7)
    both.top("best", 1, by="i", window=mw.windows.tumbling(50))
    sinks = {name: mw.sinks.Collect() for name in SINKS}
    for name, sink in sinks.items():
        p.stream(name).sink(sink)
    return p, sinks


def batch(found: list[Row]) -> dict[str, Counter[str]]:
    """The same, naively."""
    wanted: dict[str, list[object]] = {name: [] for name in SINKS}
    for key, mine in by_key(found).items():
        mine = sorted(mine, key=lambda row: row[2])
        times = [time for _, _, time in mine]
        for start in range(-20, 400, 10):
            inside = sum(start <= time < start + 10 for time in times)
            if inside:
                wanted["counts"].append({"key": key, "start": start, "end": start + 10, "count": inside})
            after = [value["i"] for _, value, time in mine if start <= time < start + 20]
            if after:
                wanted["last"].append({"key": key, "start": start, "end": start + 20, "i": after[-1]})
        first = 0
        for place in range(1, len(mine) + 1):
            if place == len(mine) or times[place] >= times[place - 1] + 6:
                total = sum(value["n"] for _, value, _ in mine[first:place])
                window = {"key": key, "start": times[first], "end": times[place - 1] + 6}
                wanted["sessions"].append({**window, "total": total})
                first = place
        wanted["spaced"] += [time for n, time in enumerate(times) if not n or times[n - 1] < time - 7]
        sides = [[(row[1]["i"], row[2]) for row in mine if row[0] == stream] for stream in STREAMS]
        pairs = [(i, j) for i, at in sides[0] for j, then in sides[1] if abs(then - at) <= 8]
        paired = {number for pair in pairs for number in pair}
        pairs += [(i, None) for i, _ in sides[0] if i not in paired]
        pairs += [(None, j) for j, _ in sides[1] if j not in paired]
        wanted["pairs"] += pairs
    for start in range(0, 300, 50):
        wanted["best"].append(max((v["i"] for _, v, time in found if start <= time < start + 50)))
    return {name: Counter(map(repr, values)) for name, values in wanted.items()}


def outcome(kept: dict[str, list[mw.Record]]) -> dict[str, Counter[str]]:
    """What came out over all runs, in the form of `batch`."""
    finals = {}
    for record in kept["last"]:
        value = dict(record.value)
        revision = value.pop("revision")
        place = (record.key, value["start"])
        assert revision == (finals[place][0] + 1 if place in finals else 0)
        finals[place] = revision, value
    shown: dict[str, list[object]] = {
        "counts": [record.value for record in kept["counts"]],
        "last": [value for _, value in finals.values()],
        "sessions": [record.value for record in kept["sessions"]],
        "pairs": [tuple(side and side["i"] for side in record.value.values()) for record in kept["pairs"]],
        "spaced": [record.timestamp for record in kept["spaced"]],
        "best": [record.value["top"][0]["i"] for record in kept["best"]],
    }
    return {name: Counter(map(repr, values)) for name, values in shown.items()}


@pytest.mark.spark
def test_operators_over_a_folder_that_grows_end_equal_to_one_query_over_all_of_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    found = rows(3, STREAMS, count=150, span=300, ties=False)
    rng = random.Random(3)
    arrived = sorted(found, key=lambda row: row[2] + rng.randrange(30))
    kept: dict[str, list[mw.Record]] = {name: [] for name in SINKS}
    for day in range(4):
        for stream in STREAMS:
            mine = [row for row in arrived[day * 50 : (day + 1) * 50] if row[0] == stream]
            text = "".join(json.dumps({**value, "at": time}) + "\n" for _, value, time in mine)
            if text:
                (tmp_path / f"{stream}-{day}").write_text(text)
        for again in (False, True):
            if again and day == 3:
                break
            p, sinks = pipeline(tmp_path)
            report = mw.run(p, store=tmp_path / "store", spark=spark, close=day == 3)
            assert report.dropped == dict.fromkeys(report.dropped, 0)
            assert bool(report.records_in) == (not again and day < 3)
            for name, sink in sinks.items():
                kept[name] += sink.records
    assert outcome(kept) == batch(found)


def test_a_window_that_two_days_share_comes_once_for_each() -> None:
    p = mw.Pipeline("days")
    p.inject("a", source()).key_by("k").window(mw.windows.tumbling(10)).count("out")
    h = mw.testing.Harness(p)
    for times in ((1, 4), (7, 2)):  # the last one is late, and its window is open
        for time in times:
            h.send("a", {"k": "x"}, timestamp=time)
        h.drain()
        h.reopen()
    h.drain()
    assert [record.value["count"] for record in h.output("out")] == [2, 2]
    assert (h.status().late["out"], h.status().dropped["out"]) == (1, 0)
