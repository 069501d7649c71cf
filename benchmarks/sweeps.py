"""Throughput against the number of keys, the size of records, the number of levels, and the size of state.

One computation that counts, on records that a generator makes; one of the four changes at a time. Each
point is a run on a new store, of which the first fifth (with many keys: as long as new keys come) is not
counted. A full run takes about ten minutes; a point that has not ended after four is cut there
(after fifteen, with a million keys or more).
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from benchmarks import chart, results
from benchmarks.pace import follow, size_of
from benchmarks.pipelines import sweeps
from benchmarks.session import session

_LIMIT = 240.0  # seconds for a point; ten million keys have a longer one
_FILL = 900.0


@dataclass(frozen=True)
class Point:
    """What a run has; the number that the sweep is about is ``x``."""

    x: int
    records: int
    keys: int = 10_000
    size: int = 10
    state: int = 0
    levels: int = 1


def _points(*, quick: bool) -> Mapping[str, list[Point]]:
    if quick:
        return {
            "keys": [Point(keys, 20_000, keys=keys) for keys in (100, 10_000)],
            "bytes a record": [Point(size, 5_000, size=size) for size in (10, 10_000)],
            "levels": [Point(levels, 10_000, levels=levels) for levels in (1, 3)],
            "bytes of state": [Point(state, 3_000, keys=100, state=state) for state in (10, 10_000)],
        }
    return {
        "keys": [Point(10**n, 1_000_000, keys=10**n) for n in range(2, 8)],
        # As many records as make some seconds' work: at first they are many, then they are large.
        "bytes a record": [
            Point(size, min(500_000_000 // size, 500_000), size=size)
            for size in (10, 100, 1_000, 10_000, 100_000)
        ],
        "levels": [Point(levels, 500_000, levels=levels) for levels in range(1, 7)],
        "bytes of state": [
            Point(state, min(20_000_000_000 // state, 250_000), keys=100, state=state)
            for state in (10, 100, 1_000, 10_000, 100_000, 1_000_000)
        ],
    }


def run(*, quick: bool = False, most_keys: int = 10_000_000) -> dict[str, Any]:
    """Runs every sweep, prints a table, and writes the artifacts."""
    label = results.name("sweeps", quick=quick)
    found: dict[str, list[dict[str, Any]]] = {}
    result = {"quick": quick, "sweeps": found}
    with results.scratch("sweeps") as work, session(work) as spark:
        for name, points in _points(quick=quick).items():
            found[name] = []
            for point in points:
                if point.keys > most_keys:
                    continue
                found[name].append(measure(spark, point, work / "run"))
                print(f"{name} {point.x:,}: {found[name][-1]['records_per_second']:,} records/s", flush=True)
            results.save(label, result)  # a later sweep that fails does not cost this one
    rows = [
        [name, f"{part['x']:,}", part["records"], part["records_per_second"], part["store_bytes"] / 1e6]
        for name, parts in found.items()
        for part in parts
    ]
    print(results.table(["sweep", "at", "records", "records/s", "store, MB"], rows))
    chart.curves(
        results.artifact(f"{label}.png"),
        "Throughput, records/s",
        {name: ("records/s", {"millwheel": _line(parts)}) for name, parts in found.items()},
    )
    return result


def _line(parts: list[dict[str, Any]]) -> tuple[list[float], list[float]]:
    return [part["x"] for part in parts], [part["records_per_second"] for part in parts]


def measure(spark: SparkSession, point: Point, work: Path) -> dict[str, Any]:
    """One run. Every key is there before what is counted begins."""
    fill = max(point.keys, point.records // 5)
    p = sweeps.pipeline(
        records=fill + point.records, keys=point.keys, size=point.size, state=point.state, levels=point.levels
    )
    limit = _LIMIT if point.keys < 1_000_000 else _FILL
    pace = follow(spark, p, work / "store", records=fill + point.records, limit=limit)
    done = pace.points[-1][1]
    found = {
        "x": point.x,
        "keys": point.keys,
        "records": max(done - fill, 0),
        "ended": done >= fill + point.records,
        "records_per_second": round(pace.rate(fill)),
        "store_bytes": size_of(work / "store"),
    }
    shutil.rmtree(work)
    return found
