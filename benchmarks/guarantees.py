"""What each guarantee costs (8.1, Fig. 13): exactly-once and strong productions on, each off, both off.

One job of two stages that are keyed differently; the four take turns in one run. The chart is the figure's
histogram of latencies.
"""

from __future__ import annotations

import random
import shutil
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import millwheel as mw
from benchmarks import chart, latency, results, writer
from benchmarks.pipelines import guarantees
from benchmarks.session import session

CASES = {
    "exactly once, strong": (True, True),
    "exactly once, weak": (True, False),
    "duplicates pass, strong": (False, True),
    "duplicates pass, weak": (False, False),
}


def run(*, quick: bool = False, rounds: int = 2) -> dict[str, Any]:
    """Runs the four in turns, prints a table, and writes the artifacts."""
    seconds = 3.0 if quick else 15.0
    records = 20_000 if quick else 400_000
    latencies: dict[str, list[list[float]]] = {name: [] for name in CASES}
    rates: dict[str, list[float]] = {name: [] for name in CASES}
    with results.scratch("guarantees") as work, session(work) as spark:
        source = work / "bulk"
        source.mkdir()
        rng = random.Random(0)
        for part in range(8):
            share = records // 8
            writer.send(source, f"log-{part}", range(part * share, (part + 1) * share), rng)
        for number in range(rounds):
            for name, (exactly_once, strong) in CASES.items():
                print(f"round {number + 1} of {rounds}: {name}", flush=True)
                folder = work / f"{number}-{list(CASES).index(name)}"
                rates[name].append(records / _throughput(spark, source, folder, exactly_once, strong))
                start = _starter(exactly_once, strong)
                latencies[name].append(latency.turn(spark, folder / "latency", start, seconds))
    cases = {
        name: {
            **latency.summary(latencies[name]),
            "records_per_second": round(statistics.median(rates[name])),
            "rates": [round(rate) for rate in rates[name]],
            "histogram": histogram([value for turn in latencies[name] for value in turn]),
        }
        for name in CASES
    }
    result = {"quick": quick, "rounds": rounds, "records": records, "cases": cases}
    label = results.name("guarantees", quick=quick)
    results.save(label, result)
    head = ["guarantees", "p50 ms", "p95 ms", "p99 ms", "records/s"]
    keys = ("p50", "p95", "p99", "records_per_second")
    print(results.table(head, [[name, *(part[key] for key in keys)] for name, part in cases.items()]))
    chart.histogram(
        results.artifact(f"{label}.png"),
        "Latency through two differently keyed stages (Fig. 13)",
        "milliseconds",
        {name: [value for turn in turns for value in turn] for name, turns in latencies.items()},
        last=max(part["p99"] for part in cases.values()) * 1.3,
    )
    return result


def histogram(latencies: list[float], step: int = 5) -> dict[str, int]:
    """How many records took so many milliseconds, in steps.

    >>> histogram([3.0, 4.9, 5.0, 12.0])
    {'0': 2, '5': 1, '10': 1}
    """
    found = Counter(int(latency // step) * step for latency in latencies)
    return {str(begin): found[begin] for begin in sorted(found)}


def _throughput(spark: SparkSession, source: Path, work: Path, exactly_once: bool, strong: bool) -> float:
    """The seconds that a run takes."""
    p = guarantees.pipeline(
        source, work / "out", exactly_once=exactly_once, strong=strong, follow=False, stamped=False
    )
    started = time.perf_counter()
    mw.run(p, store=work / "store", spark=spark, progress=False)
    seconds = time.perf_counter() - started
    shutil.rmtree(work)
    return seconds


def _starter(exactly_once: bool, strong: bool) -> latency.Start:
    @contextmanager
    def start(spark: SparkSession, source: Path, out: Path, work: Path) -> Iterator[Callable[[], None]]:
        p = guarantees.pipeline(
            source, out, exactly_once=exactly_once, strong=strong, follow=True, stamped=True
        )
        with mw.start(p, store=work / "store", spark=spark, progress=False) as job:
            yield lambda: _look(job)

    return start


def _look(job: mw.Job) -> None:
    """An error of the job is raised here."""
    job.status()
