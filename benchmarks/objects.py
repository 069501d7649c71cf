"""The windowed count with its state on object storage and in LMDB, in turns; and what it asks of the storage.

The job, the input and the windows that both must find are those of `benchmarks.throughput`. The S3 server
runs on the same machine and takes its share of the same cores. Requests are those of its own log; bytes are
those of the round that warms up, which goes through a relay that counts them.

Then the same in epochs of a second, with 50 ms put in front of every request and without, in turns, both
through a relay. The input is as long as the first comparison says that it must be.
"""

from __future__ import annotations

import os
import statistics
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks import counted, data, results
from benchmarks.session import session
from benchmarks.throughput import CASES, QUICK_CASES, Case, Comparison, summary
from tests.servers.relay import Relay, relay
from tests.servers.s3 import ENVIRONMENT, Server, server

_TARGETS = (0.85, 0.7)  # of LMDB, with few keys and with many
_DELAY = 0.05
"""Seconds: of the far end of what a put takes on S3, 20 to 60 ms."""
_DELAYED_TARGET = 0.7  # of the rate without delay
_EPOCH = 1.0  # seconds
_LENGTH = 24.0
"""Seconds of a run without delay: at least 20, with some to spare, as rates differ between runs."""
_FILE = 50_000  # records
_PRICES = {"PUT": 5e-6, "GET": 0.4e-6, "LIST": 5e-6, "DELETE": 0.0}
"""Dollars for a request, at the list prices of S3 Standard in us-east-1."""
_GIGABYTE = 1e9
_TO_THE_INTERNET = 0.09 / _GIGABYTE
"""Dollars for a byte that leaves the region; within the region, and into it, bytes cost nothing."""
_KEPT_FOR_A_MONTH = 0.023 / _GIGABYTE

_KINDS = {
    "PutObject": "PUT",
    "GetObject": "GET",
    "HeadObject": "GET",
    "ListObjects": "LIST",
    "Delete": "DELETE",
}


def run(*, quick: bool = False, rounds: int = 3) -> dict[str, Any]:
    """Runs both cases, prints tables, and writes the artifact."""
    os.environ.update(ENVIRONMENT)
    name = results.name("objects", quick=quick)
    result: dict[str, Any] = {"quick": quick, "cases": [], "delay": _DELAY, "epoch": _EPOCH, "delayed": []}
    with (
        results.scratch("objects") as work,
        server("--access-log", os.fspath(work / "requests")) as found,
        relay(found.port) as direct,
        relay(found.port, _DELAY) as delayed,
    ):
        os.environ["MILLWHEEL_COPIES"] = os.fspath(work / "copies")
        found.make_bucket("bench")
        with session(work, {}) as spark:
            for case, target in zip(QUICK_CASES if quick else CASES, _TARGETS, strict=True):
                comparison = Comparison(case, spark, work)
                one = _case(case, target, comparison, found, direct, work / "requests", rounds)
                result["cases"].append(one)
                results.save(name, result)
                source = comparison.short if quick else _long(work, case, one["objects"]["median"])
                relays = {"without": direct, "with": delayed}
                result["delayed"].append(_delayed(case, comparison, source, found, relays, rounds))
                results.save(name, result)
    result["passed"] = all(case["passed"] for case in result["cases"] + result["delayed"])
    results.save(name, result)
    _print(result)
    return result


def _print(result: dict[str, Any]) -> None:
    rows = [
        [case["keys"], case["objects"]["median"], case["LMDB"]["median"], case["of_lmdb"]]
        for case in result["cases"]
    ]
    print(results.table(["keys", "object storage, records/s", "LMDB", "ratio"], rows))
    rows = [
        [case["keys"], case["without"]["median"], case["with"]["median"], case["ratio"], case["shortest"]]
        for case in result["delayed"]
    ]
    head = ["keys", "without delay, records/s", f"with {_DELAY * 1e3:.0f} ms", "ratio", "shortest run, s"]
    print(results.table(head, rows))
    for case in result["cases"]:
        sent, received = (round(count / 1e6, 1) for count in case["bytes"].values())
        priced = "; ".join(f"{name} {price:.4f}" for name, price in case["dollars_of_bytes"].items())
        print(
            f"{_judged(case, result)}  {case['keys']:,} keys: {case['of_lmdb']:.2f} of LMDB (target "
            f"{case['target']}); for a million records {case['requests']}, {case['dollars']:.4f} dollars; "
            f"{sent} MB sent and {received} MB received, dollars: {priced}"
        )
    for case in result["delayed"]:
        print(
            f"{_judged(case, result)}  {case['keys']:,} keys, epochs of {_EPOCH:g} s: {case['ratio']:.2f} of "
            f"the rate without delay (target {case['target']})"
        )


def _judged(case: dict[str, Any], result: dict[str, Any]) -> str:
    return "not judged" if result["quick"] else results.verdict(bool(case["passed"]))


def _case(
    case: Case,
    target: float,
    comparison: Comparison,
    found: Server,
    counting: Relay,
    log: Path,
    rounds: int,
) -> dict[str, Any]:
    source = comparison.short
    truth = counted.truth(source)
    rates: dict[str, list[float]] = {"objects": [], "LMDB": []}
    same = True
    requests: Counter[str] = Counter()
    sent = received = 0
    for number in range(rounds + 1):  # the first of them warms up
        before, bytes_before = _requests(log), counting.counted()
        url = found.url("bench", f"{case.keys}-{number}", port=None if number else counting.port)
        runs = {"objects": comparison.millwheel(source, url), "LMDB": comparison.millwheel(source)}
        requests = _requests(log) - before
        if number == 0:
            sent, received = (now - then for now, then in zip(counting.counted(), bytes_before, strict=True))
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
        "bytes": {"sent": round(sent / millions), "received": round(received / millions)},
        "dollars_of_bytes": {
            "within the region": 0.0,
            "received outside of it": received * _TO_THE_INTERNET / millions,
            "sent, and kept for a month": sent * _KEPT_FOR_A_MONTH / millions,
        },
    }


def _long(work: Path, case: Case, rate: float) -> data.Input:
    """An input that takes the time that a run must have."""
    files = max(1, round(rate * _LENGTH / _FILE))
    folder = work / f"{case.keys}-keys" / "delayed"
    return data.generate(folder, keys=case.keys, records=files * _FILE, files=files)


def _delayed(
    case: Case,
    comparison: Comparison,
    source: data.Input,
    found: Server,
    relays: Mapping[str, Relay],
    rounds: int,
) -> dict[str, Any]:
    """Epochs of a second, with a delay in front of the server and without, in turns."""
    truth = counted.truth(source)
    seconds: dict[str, list[float]] = {name: [] for name in relays}
    same = True
    for number in range(rounds):
        for name, through in list(relays.items())[:: -1 if number % 2 else 1]:
            url = found.url("bench", f"{case.keys}-{name}-{number}", port=through.port)
            counts, taken = comparison.millwheel(source, url, target=_EPOCH)
            same = same and counts == truth
            seconds[name].append(taken)
        told = ", ".join(f"{name} delay {source.records / found[-1]:,.0f}" for name, found in seconds.items())
        print(f"{case.keys:,} keys, round {number + 1} of {rounds}: {told} records/s", flush=True)
    rates = {name: [source.records / taken for taken in found] for name, found in seconds.items()}
    ratio = statistics.median(rates["with"]) / statistics.median(rates["without"])
    return {
        "keys": case.keys,
        "same_windows": same,
        **{name: summary(source.records, found) for name, found in rates.items()},
        "shortest": round(min(min(found) for found in seconds.values()), 1),
        "ratio": ratio,
        "target": _DELAYED_TARGET,
        "passed": same and ratio >= _DELAYED_TARGET,
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
