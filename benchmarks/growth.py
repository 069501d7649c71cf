"""Cost that grows as it should: flat in a run's length, nearly so in keys; a store as large as its state.

Three measurements. A long run of windows over 1,000 keys, whose live state does not grow: up to 100 million
records, or 25 minutes (``--minutes``). Keys from 1 thousand to 10 million (``--most-keys``), all with state
before what is counted begins. The store's bytes against the bytes of the state in it, from ten thousand to
a million keys.
"""

from __future__ import annotations

import shutil
import statistics
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import millwheel as mw
from benchmarks import chart, results, sweeps
from benchmarks.pace import Pace, follow, size_of
from benchmarks.pipelines import sweeps as pipelines
from benchmarks.session import session

_MINUTES = 25.0
_MOST_KEYS = 10_000_000
_TENTHS = 10
FLAT = 1.2  # the last tenth of a run may take this much more than the first: machines have moods
KEYS = 3.0
PROPORTIONAL = 2.0
_STATE = 100  # bytes of a key's state in the measurement of the store


def run(*, quick: bool = False, minutes: float = _MINUTES, most_keys: int = _MOST_KEYS) -> dict[str, Any]:
    """Runs the three, prints tables, and writes the artifacts."""
    numbers = (1_000, 20_000) if quick else (1_000, 10_000, 100_000, 1_000_000, 10_000_000)
    label = results.name("growth", quick=quick)
    with results.scratch("growth") as work, session(work) as spark:
        length = _length(spark, work, 100_000 if quick else 100_000_000, minutes)
        keys = _keys(spark, work, tuple(number for number in numbers if number <= most_keys))
        store = _store(spark, work, (2_000, 20_000) if quick else (10_000, 100_000, 1_000_000))
    result = {"quick": quick, "length": length, "keys": keys, "store": store}
    results.save(label, result)
    _print(result)
    chart.curves(
        results.artifact(f"{label}.png"),
        "Cost as it grows",
        {
            "records in a run": (
                "µs a record",
                {"length of a run": (length["at"], length["microseconds"])},
            ),
            "keys": ("µs a record", {"keys": _curve(keys["points"], "keys", "microseconds")}),
            "bytes of state": ("bytes of the store", {"store": _curve(store["points"], "state", "store")}),
        },
    )
    return result


def _curve(points: list[dict[str, Any]], x: str, y: str) -> tuple[list[float], list[float]]:
    return [point[x] for point in points], [point[y] for point in points]


def _length(spark: SparkSession, work: Path, records: int, minutes: float) -> dict[str, Any]:
    """Time a record by tenths of the run. The first epochs, before there is a pace, belong to none."""
    pace = follow(
        spark, pipelines.endless(1_000, records), work / "long", records=records, limit=minutes * 60
    )
    size = size_of(work / "long")
    shutil.rmtree(work / "long")
    at, costs = tenths(pace)
    ratio = statistics.median(costs[-3:]) / statistics.median(costs[:3])
    return {
        "records": pace.points[-1][1],
        "seconds": round(pace.points[-1][0], 1),
        "at": at,
        "microseconds": costs,
        "last_to_first": round(ratio, 3),
        "limit": FLAT,
        "flat": ratio <= FLAT,
        "store_bytes": size,
    }


def tenths(pace: Pace) -> tuple[list[int], list[float]]:
    """Microseconds a record in each tenth of a run: where the tenth ended, and what a record took.

    >>> tenths(Pace([(float(n), n * 1_000_000) for n in range(21)]))[1]
    [1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]
    """
    points = pace.points
    first, last = points[0][1], points[-1][1]
    at: list[int] = []
    costs: list[float] = []
    began = points[0]
    for point in points[1:]:
        if point[1] >= first + (last - first) * (len(at) + 1) / _TENTHS:
            costs.append(round((point[0] - began[0]) / (point[1] - began[1]) * 1e6, 3))
            at.append(point[1])
            began = point
    return at, costs


def _keys(spark: SparkSession, work: Path, numbers: tuple[int, ...]) -> dict[str, Any]:
    points = []
    for number in numbers:
        # Several epochs of each: with many keys they are long.
        count = 20_000 if number <= 20_000 and len(numbers) == 2 else max(1_000_000, number // 2)
        found = sweeps.measure(spark, sweeps.Point(number, count, keys=number), work / "keys")
        rate = found["records_per_second"]
        points.append({"keys": number, "microseconds": round(1e6 / rate, 3) if rate else None, **found})
        print(f"{number:,} keys: {rate:,} records/s", flush=True)
    costs = [point["microseconds"] for point in points]
    ratio = max(costs) / min(costs)
    return {"points": points, "most_to_least": round(ratio, 2), "limit": KEYS, "within": ratio <= KEYS}


def _store(spark: SparkSession, work: Path, numbers: tuple[int, ...]) -> dict[str, Any]:
    """Bytes of the store for each byte of state, which must not depend on how much there is."""
    points = []
    for number in numbers:
        p = pipelines.pipeline(records=number, keys=number, state=_STATE)
        report = mw.run(p, store=work / "store", spark=spark, progress=False)
        state = number * _STATE
        size = size_of(work / "store")
        points.append(
            {"keys": report.records_in, "state": state, "store": size, "ratio": round(size / state, 2)}
        )
        shutil.rmtree(work / "store")
    ratios = [point["ratio"] for point in points]
    spread = max(ratios[1:] or ratios) / min(ratios[1:] or ratios)
    return {
        "points": points,
        "spread": round(spread, 2),
        "limit": PROPORTIONAL,
        "proportional": spread <= PROPORTIONAL,
    }


def _print(result: dict[str, Any]) -> None:
    """A quick run is not held against the limits: its start is most of it."""
    verdict = (lambda _: "not judged") if result["quick"] else results.verdict
    length, keys, store = result["length"], result["keys"], result["store"]
    print(
        results.table(
            ["records", "µs a record"], list(zip(length["at"], length["microseconds"], strict=True))
        )
    )
    said = f"{length['last_to_first']:.2f} times as long as the first, at most {FLAT:g}"
    print(
        f"{verdict(length['flat'])}  {length['records']:,} records in {length['seconds']:,} s: "
        f"the last take {said}"
    )
    print(results.table(["keys", "µs a record"], [[p["keys"], p["microseconds"]] for p in keys["points"]]))
    said = f"{keys['most_to_least']:.2f} times, at most {KEYS:g}"
    print(f"{verdict(keys['within'])}  the most costly takes the least costly's {said}")
    rows = [[p["keys"], p["state"], p["store"], p["ratio"]] for p in store["points"]]
    print(results.table(["keys", "bytes of state", "bytes of the store", "ratio"], rows))
    print(
        f"{verdict(store['proportional'])}  the ratios differ by {store['spread']:.2f} times, at "
        f"most {PROPORTIONAL:g} (the smallest store, mostly empty pages, aside)"
    )
