"""The balancer on skewed streams, on against off, in turns (7.1)."""

from __future__ import annotations

import shutil
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import millwheel as mw
from benchmarks import chart, results
from benchmarks.pipelines import skewed
from benchmarks.session import session
from millwheel.master.balancer import Estimate, improve
from millwheel.master.intervals import even_intervals
from millwheel.model.keys import TABLETS, fingerprint

_RATE = 45_000  # records in a second that a core about does: what a minute of the shifting stream has
_SLOTS = 2
_TARGETS = {"Zipf(1.2), hottest together": 1.5, "hot range that shifts": 1.5, "even": 0.95}


def run(*, quick: bool = False, rounds: int = 2, minute: float | None = None) -> dict[str, Any]:
    """Runs every stream with and without the balancer, prints a table, and writes the artifacts."""
    minute = minute or (3.0 if quick else 60.0)
    records = 150_000 if quick else 2_400_000
    weights = [1 / rank**skewed.ZIPF for rank in range(1, skewed.KEYS + 1)]
    unlucky, lucky = skewed.zipf(unlucky=True), skewed.zipf(unlucky=False)
    shift = int(minute * _RATE)
    streams: dict[str, Callable[[], skewed.Drawn]] = {
        "Zipf(1.2), hottest together": lambda: skewed.Drawn(records, unlucky, weights),
        "Zipf(1.2), as it falls": lambda: skewed.Drawn(records // 2, lucky, weights),
        "hot range that shifts": lambda: skewed.Drawn(2 * shift, lucky, shift=shift),
        "even": lambda: skewed.Drawn(records // 2, lucky),
    }
    rates: dict[str, dict[str, list[float]]] = {name: {"on": [], "off": []} for name in streams}
    changes: dict[str, dict[str, int]] = {}
    with results.scratch("balance") as work, session(work) as spark:
        _turn(spark, work, skewed.Drawn(100_000, lucky), balance=True)  # warms up
        for number in range(rounds):
            for name, make in streams.items():
                for balance in (True, False) if number % 2 == 0 else (False, True):
                    rate, report = _turn(spark, work, make(), balance=balance)
                    rates[name]["on" if balance else "off"].append(rate)
                    if balance:
                        changes[name] = report.intervals
                    what = f"{name}, {'on' if balance else 'off'}"
                    print(f"round {number + 1} of {rounds}: {what}: {rate:,.0f}/s", flush=True)
    cases = {name: _summary(found, _TARGETS.get(name), changes[name]) for name, found in rates.items()}
    result = {"quick": quick, "rounds": rounds, "minute": minute, "slots": _SLOTS, "streams": cases}
    label = results.name("balance", quick=quick)
    results.save(label, {**result, "tablets": finer()})
    rows = [
        [
            name,
            case["off"],
            case["on"],
            f"{case['ratio']:.2f}",
            str(case["target"] or ""),
            str(case["changes"]),
        ]
        for name, case in cases.items()
    ]
    print(results.table(["stream", "off, records/s", "on, records/s", "ratio", "goal", "changes"], rows))
    chart.bars(
        results.artifact(f"{label}.png"),
        "Records/s, balancer off and on (median)",
        list(cases),
        {"off": [case["off"] for case in cases.values()], "on": [case["on"] for case in cases.values()]},
    )
    return result


def _turn(
    spark: SparkSession, work: Path, injector: skewed.Drawn, *, balance: bool
) -> tuple[float, mw.Report]:
    folder = work / "turn"
    started = time.perf_counter()
    report = mw.run(
        skewed.pipeline(injector),
        store=folder,
        spark=spark,
        slots=_SLOTS,
        balance=balance,
        progress=False,
    )
    seconds = time.perf_counter() - started
    if report.user["counted"] != report.records_in:
        raise AssertionError(f"{report.records_in:,} records came, {report.user['counted']:,} were counted")
    shutil.rmtree(folder)
    return report.records_in / seconds, report


def _summary(found: dict[str, list[float]], target: float | None, changes: dict[str, int]) -> dict[str, Any]:
    ratios = [on / off for on, off in zip(found["on"], found["off"], strict=True)]
    ratio = statistics.median(ratios)
    return {
        "on": round(statistics.median(found["on"])),
        "off": round(statistics.median(found["off"])),
        "ratios": [round(each, 2) for each in ratios],
        "ratio": ratio,
        "target": target,
        "passed": target is None or ratio >= target,
        "changes": changes,
    }


def finer() -> list[dict[str, Any]]:
    """What finer tablets would be worth: the busiest slot's share of Zipf(1.2), over an even share.

    By calculation, for the keys of this benchmark as they fall: with 64 tablets as the balancer lays them
    out, and with as many tablets as there are keys, where only the hottest key itself is in the way.
    """
    weights = [1 / rank**skewed.ZIPF for rank in range(1, skewed.KEYS + 1)]
    total = sum(weights)
    costs = [0.0] * TABLETS
    for key, weight in zip(skewed.zipf(unlucky=False), weights, strict=True):
        costs[fingerprint(key.encode())[0] >> 2] += weight / total
    found = []
    for slots in (2, 4, 8, 16, 32):
        shards = slots
        even = Estimate(
            even_intervals(slots, shards, 0), [cost * 100 for cost in costs], slots, shards, slots
        )
        after = improve(even, [0] * TABLETS)
        ideal = max(1 / slots, max(weights) / total)
        found.append(
            {
                "slots": slots,
                "even_cut": round(max(even.loads) / 100 * slots, 2),
                "balanced": round(max(after.loads) / 100 * slots, 2),
                "no_key_divided": round(ideal * slots, 2),
            }
        )
    return found


def run_tablets() -> None:
    """Prints what finer tablets would be worth."""
    rows = [[part["slots"], part["even_cut"], part["balanced"], part["no_key_divided"]] for part in finer()]
    print(results.table(["slots", "cut evenly", "64 tablets, balanced", "a tablet for each key"], rows))
