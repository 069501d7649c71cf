"""The windowed count with its state on object storage and in LMDB, in turns; and the requests it takes.

The job, the input and the windows that both must find are those of `benchmarks.throughput`. The S3 server
runs on the same machine and takes its share of the same cores. Requests are those of its own log.
"""

from __future__ import annotations

import os
import statistics
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks import counted, results
from benchmarks.session import session
from benchmarks.throughput import CASES, QUICK_CASES, Case, Comparison, summary
from tests.servers.s3 import ENVIRONMENT, Server, server

_TARGETS = (0.85, 0.7)  # of LMDB, with few keys and with many
_PRICES = {"PUT": 5e-6, "GET": 0.4e-6, "LIST": 5e-6, "DELETE": 0.0}
"""Dollars for a request, at the list prices of S3 Standard in us-east-1."""

_KINDS = {
    "PutObject": "PUT",
    "GetObject": "GET",
    "HeadObject": "GET",
    "ListObjects": "LIST",
    "Delete": "DELETE",
}


def run(*, quick: bool = False, rounds: int = 3) -> dict[str, Any]:
    """Runs both cases, prints a table, and writes the artifacts."""
    os.environ.update(ENVIRONMENT)
    with results.scratch("objects") as work, server("--access-log", os.fspath(work / "requests")) as found:
        os.environ["MILLWHEEL_COPIES"] = os.fspath(work / "copies")
        found.make_bucket("bench")
        with session(work, {}) as spark:
            cases = [
                _case(case, target, Comparison(case, spark, work), found, work / "requests", rounds)
                for case, target in zip(QUICK_CASES if quick else CASES, _TARGETS, strict=True)
            ]
    result = {"quick": quick, "cases": cases, "passed": all(case["passed"] for case in cases)}
    results.save(results.name("objects", quick=quick), result)
    rows = [
        [case["keys"], case["objects"]["median"], case["LMDB"]["median"], case["of_lmdb"]] for case in cases
    ]
    print(results.table(["keys", "object storage, records/s", "LMDB", "ratio"], rows))
    for case in cases:
        judged = "not judged" if quick else results.verdict(bool(case["passed"]))
        print(
            f"{judged}  {case['keys']:,} keys: {case['of_lmdb']:.2f} of LMDB (target {case['target']}); for "
            f"a million records {case['requests']}, {case['dollars']:.4f} dollars"
        )
    return result


def _case(
    case: Case, target: float, comparison: Comparison, found: Server, log: Path, rounds: int
) -> dict[str, Any]:
    source = comparison.short
    truth = counted.truth(source)
    rates: dict[str, list[float]] = {"objects": [], "LMDB": []}
    same = True
    requests: Counter[str] = Counter()
    for number in range(rounds + 1):  # the first of them warms up
        before = _requests(log)
        url = found.url("bench", f"{case.keys}-{number}")
        runs = {"objects": comparison.millwheel(source, url), "LMDB": comparison.millwheel(source)}
        requests = _requests(log) - before
        for name, (counts, seconds) in runs.items():
            same = same and counts == truth
            if number:
                rates[name].append(source.records / seconds)
        told = ", ".join(f"{name} {source.records / seconds:,.0f}" for name, (_, seconds) in runs.items())
        print(f"{case.keys:,} keys, round {number} of {rounds}: {told} records/s", flush=True)
    ratio = statistics.median(rates["objects"]) / statistics.median(rates["LMDB"])
    millions = source.records / 1e6
    return {
        "keys": case.keys,
        "same_windows": same,
        **{name: summary(source.records, found) for name, found in rates.items()},
        "of_lmdb": ratio,
        "target": target,
        "passed": same and ratio >= target,
        "requests": {name: round(count / millions) for name, count in sorted(requests.items())},
        "dollars": sum(_PRICES[name] * count for name, count in requests.items()) / millions,
    }


def _requests(log: Path) -> Counter[str]:
    """What the server was asked, by the kind that has a price."""
    found: Counter[str] = Counter()
    if not log.exists():
        return found
    for line in log.read_text().splitlines():
        for operation, kind in _KINDS.items():
            if f" s3_{operation}" in line:
                found[kind] += 1
                break
    return found
