"""Joins at scale: two streams, pairs of one key within a minute, beside Structured Streaming's own join.

Each stream has 1,000 records in a second of event time, up to two seconds out of order, and 100,000 keys, so
that a record has 1.2 partners. Both systems read the same JSON lines and write JSON lines, exactly once and
durable with every epoch or batch; they run in turns, as processes of their own, and are timed as in
`benchmarks.field`: the steady rate is what a long run took more than a short one. The pairs of both are
compared with those of a loop. A third measurement is a run of ten million records: the bytes of the
store over time, which the window bounds.
"""

from __future__ import annotations

import os
import random
import statistics
import sys
import time
from bisect import bisect_left, bisect_right, insort
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

import millwheel as mw
from benchmarks import chart, data, field, results
from benchmarks.pace import size_of
from benchmarks.peers import spark_join, systems
from benchmarks.pipelines import joined
from benchmarks.session import session

RATE = 1_000  # records of a stream in a second of event time
_BEGIN = 1_300_000_000 * mw.SECOND
_FILE = 50_000  # records
_GOAL = 1.0  # times the rate of Structured Streaming
_GROWTH = 1.2  # the state of the second half of the long run may be this much of the first half's
_LOOK = 0.5  # seconds between two samples of the store


@dataclass(frozen=True)
class Size:
    """How much is joined: records of both streams together."""

    keys: int
    long: int
    short: int
    """0: there is no short run."""
    batch: int
    """Records in a batch of Structured Streaming; millwheel sizes its epochs itself."""
    run: int
    """Records of the run whose state is followed."""


FULL = Size(100_000, 2_000_000, 400_000, 400_000, 10_000_000)
QUICK = Size(5_000, 60_000, 0, 20_000, 200_000)


def generate(folder: Path, *, keys: int, records: int, seed: int = 1) -> data.Input:
    """Writes both streams, in files that each cover the time after the one before it."""
    source = random.Random(seed)
    each = records // 2
    size = min(_FILE, max(each // 4, 1))
    for side in ("left", "right"):
        (folder / side).mkdir(parents=True)
        for first in range(0, each, size):
            lines = []
            for number in range(first, min(first + size, each)):
                moment = _BEGIN + number * mw.SECOND // RATE - source.randrange(data.DISORDER)
                key = source.randrange(keys)
                lines.append(f'{{"time": {moment}, "key": "key-{key}", "number": {number}}}\n')
            path = folder / side / f"log-{first // size:05d}.jsonl"
            path.write_text("".join(lines))
            # Structured Streaming takes files by modification time.
            os.utime(path, (first // size, first // size))
    return data.Input(folder, keys, records, len(list(folder.glob("*/*"))))


def truth(source: data.Input) -> Counter[tuple[int, int]]:
    """The right answer, by a loop over the records of each key."""
    rights: dict[str, list[tuple[int, int]]] = {}
    for row in _rows(source.folder / "right"):
        insort(rights.setdefault(row["key"], []), (row["time"], row["number"]))
    pairs: Counter[tuple[int, int]] = Counter()
    for row in _rows(source.folder / "left"):
        others = rights.get(row["key"], [])
        first = bisect_left(others, (row["time"] - joined.WITHIN,))
        last = bisect_right(others, (row["time"] + joined.WITHIN, sys.maxsize))
        pairs.update((row["number"], number) for _, number in others[first:last])
    return pairs


def _rows(folder: Path) -> Any:
    for path in sorted(folder.glob("*.jsonl")):
        with open(path, "rb") as lines:
            yield from map(orjson.loads, lines)


def _millwheel(source: data.Input, work: Path, batch: int) -> systems.Commands:
    places = [os.fspath(place) for place in (source.folder, work / "out", work / "store")]
    return [[sys.executable, "-m", "benchmarks.pipelines.joined", *places, str(systems.CORES)]]


def _spark(source: data.Input, work: Path, batch: int) -> systems.Commands:
    files = max(batch * source.files // source.records // 2, 1)  # of each side
    places = [os.fspath(source.folder), os.fspath(work), str(systems.CORES), str(files)]
    return [[sys.executable, "-m", "benchmarks.peers.spark_join", *places]]


SYSTEMS = (
    systems.System(
        "millwheel",
        _millwheel,
        lambda work: joined.read(work / "out"),
        "exactly once, durable with every epoch",
    ),
    systems.System("Spark join", _spark, spark_join.read, "exactly once, durable with every batch"),
)


def run(*, quick: bool = False, rounds: int = 3) -> dict[str, Any]:
    """Runs both in turns, then the long run; prints tables, and writes the artifacts."""
    size = QUICK if quick else FULL
    load = field.Load(size.long, size.short, size.batch)
    label = results.name("joins", quick=quick)
    turns: dict[str, list[tuple[float, float]]] = {system.name: [] for system in SYSTEMS}
    right = dict.fromkeys(turns, True)
    with results.scratch("joins") as work:
        sources = [
            generate(work / f"in-{records}", keys=size.keys, records=records)
            for records in (size.long, size.short)
            if records
        ]
        truths = [truth(source) for source in sources]
        for number in range(rounds):
            for system in SYSTEMS if number % 2 == 0 else SYSTEMS[::-1]:
                took = []
                for source, wanted in zip(sources, truths, strict=True):
                    pairs, seconds = systems.run(system, source, work / "run", size.batch)
                    right[system.name] &= pairs == wanted
                    took.append(seconds)
                turns[system.name].append((took[1] if size.short else 0.0, took[0]))
                rate = field.line(load, *turns[system.name][-1])[0]
                print(f"round {number + 1} of {rounds}, {system.name}: {rate:,.0f} records/s", flush=True)
        state = _state(work, size)
    found: dict[str, Any] = {}
    for name, both in turns.items():
        short = statistics.median(short for short, _ in both)
        rate, start = field.line(load, short, short + statistics.median(long - short for short, long in both))
        found[name] = {
            "records_per_second": round(rate),
            "rates": [round(field.line(load, *turn)[0]) for turn in both],
            "start_up_seconds": round(start, 2),
            "same_pairs": right[name],
        }
    ratio = found["millwheel"]["records_per_second"] / found["Spark join"]["records_per_second"]
    result = {
        "quick": quick,
        "keys": size.keys,
        "records": size.long,
        "pairs": sum(truths[0].values()),
        "systems": found,
        "millwheel_is": round(ratio, 2),
        "goal": _GOAL,
        "passed": None if quick else ratio >= _GOAL,
        "state": state,
    }
    results.save(label, result)
    _print(result)
    points = state["points"]
    at = [point["records"] for point in points]
    chart.curves(
        results.artifact(f"{label}.png"),
        "State of a join within a minute",
        {
            "records": ("bytes of the store", {"bytes": (at, [point["bytes"] for point in points])}),
        },
    )
    return result


def _state(work: Path, size: Size) -> dict[str, Any]:
    """Bytes of the store while the long run is joined."""
    source = generate(work / "in-state", keys=size.keys, records=size.run)
    points: list[dict[str, int]] = []
    store = work / "state-store"
    p = joined.pipeline(source.folder, work / "state-out")
    with session(work, cores=systems.CORES) as spark:
        began = time.monotonic()
        with mw.start(p, store=store, spark=spark, progress=False) as job:
            while not points or points[-1]["records"] < size.run:
                job.wait(_LOOK)
                taken = job.status().records_in
                if not points or taken > points[-1]["records"]:
                    points.append({"records": taken, "bytes": size_of(store)})
            job.stop()
        seconds = time.monotonic() - began
    # By the quarter of the run every minute of state is full, also the quick run's.
    steady = [point for point in points if point["records"] >= size.run // 4] or points
    halves = [
        max((point["bytes"] for point in part), default=steady[-1]["bytes"])
        for part in (
            [point for point in steady if point["records"] < size.run * 5 // 8],
            [point for point in steady if point["records"] >= size.run * 5 // 8],
        )
    ]
    growth = halves[1] / halves[0]
    return {
        "records": size.run,
        "seconds": round(seconds, 1),
        "points": points,
        "growth": round(growth, 2),
        "limit": _GROWTH,
        "bounded": growth <= _GROWTH,
    }


def _print(result: dict[str, Any]) -> None:
    rows = [
        [name, part["records_per_second"], part["start_up_seconds"], "yes" if part["same_pairs"] else "NO"]
        for name, part in result["systems"].items()
    ]
    print(results.table(["join", "records/s", "start-up s", "right result"], rows))
    if result["passed"] is not None:
        said = f"{result['millwheel_is']:.2f} times Structured Streaming's join, goal {result['goal']:g}"
        print(f"{results.verdict(result['passed'])}  {said}")
    state = result["state"]
    step = max(len(state["points"]) // 10, 1)
    shown = [[point["records"], point["bytes"]] for point in state["points"][::step]]
    print(results.table(["records", "bytes of the store"], shown))
    said = f"largest store of the last part of the run {state['growth']:.2f} times the part before it"
    print(f"{results.verdict(state['bounded'])}  {said}, goal {state['limit']:g}")
