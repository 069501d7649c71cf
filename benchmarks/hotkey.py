"""A single hot key with nine of ten records (8.4), with ``combine=`` and without, in turns."""

from __future__ import annotations

import shutil
import statistics
import time
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import millwheel as mw
from benchmarks import chart, results
from benchmarks.pipelines import skewed
from benchmarks.session import session

_TARGET = 5.0
_HASHES = (0, 1, 4)  # of 16 kB for each record that arrives: about 0, 20 and 80 microseconds
_JUDGED = 1


def run(*, quick: bool = False, rounds: int = 3) -> dict[str, Any]:
    """Runs both in turns, prints a table, and writes the artifacts."""
    found: dict[int, dict[str, list[float]]] = {hashes: {"plain": [], "combined": []} for hashes in _HASHES}
    with results.scratch("hotkey") as work, session(work) as spark:
        _turn(spark, work, 50_000, 1, combined=True)  # warms up
        for number in range(rounds):
            for hashes in _HASHES:
                records = (400_000 if quick else 1_600_000) // (1 + hashes)
                for combined in (False, True) if number % 2 == 0 else (True, False):
                    # Enough for several seconds of either.
                    share = records * 4 if combined else records
                    rate = _turn(spark, work, share, hashes, combined=combined)
                    found[hashes]["combined" if combined else "plain"].append(rate)
                    what = "combined" if combined else "plain"
                    print(
                        f"round {number + 1} of {rounds}: {hashes} hashes, {what}: {rate:,.0f}/s", flush=True
                    )
    cases = {}
    for hashes, rates in found.items():
        ratios = [one / other for one, other in zip(rates["combined"], rates["plain"], strict=True)]
        cases[str(hashes)] = {
            "plain": round(statistics.median(rates["plain"])),
            "combined": round(statistics.median(rates["combined"])),
            "ratios": [round(ratio, 2) for ratio in ratios],
            "ratio": statistics.median(ratios),
        }
    judged = cases[str(_JUDGED)]["ratio"]
    result = {
        "quick": quick,
        "rounds": rounds,
        "cases": cases,
        "target": _TARGET,
        "passed": judged >= _TARGET,
    }
    label = results.name("hotkey", quick=quick)
    results.save(label, result)
    rows = [
        [hashes, case["plain"], case["combined"], f"{case['ratio']:.1f}"] for hashes, case in cases.items()
    ]
    print(
        results.table(["hashes of 16 kB a record", "plain, records/s", "combined, records/s", "ratio"], rows)
    )
    print(f"{results.verdict(result['passed'])}  with {_JUDGED} hash: {judged:.1f} times, goal {_TARGET:.0f}")
    chart.bars(
        results.artifact(f"{label}.png"),
        "One key with 90% of the records, records/s (median)",
        [f"{hashes} hashes a record" for hashes in cases],
        {what: [case[what] for case in cases.values()] for what in ("plain", "combined")},
        logarithmic=True,
    )
    return result


def _turn(spark: SparkSession, work: Path, records: int, hashes: int, *, combined: bool) -> float:
    keys = skewed.zipf(unlucky=False)
    weights = [9.0 * (len(keys) - 1), *[1.0] * (len(keys) - 1)]
    folder = work / "turn"
    combine = mw.combiners.Count(mw.SECOND) if combined else None
    p = skewed.pipeline(skewed.Drawn(records, keys, weights), hashes=hashes, combine=combine)
    started = time.perf_counter()
    report = mw.run(p, store=folder, spark=spark, progress=False)
    seconds = time.perf_counter() - started
    if report.user["counted"] != report.records_in:
        raise AssertionError(f"{report.records_in:,} records came, {report.user['counted']:,} were counted")
    shutil.rmtree(folder)
    return report.records_in / seconds
